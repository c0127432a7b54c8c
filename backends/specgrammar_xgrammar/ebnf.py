"""Grammars in xgrammar's EBNF."""

from __future__ import annotations

from specgrammar.grammar.regex import Alt, Chars, Node, Ref, Repeat, Seq
from specgrammar.grammar.rules import Grammar

_START = "root"


def to_ebnf(grammar: Grammar) -> str:
    """One line per rule; the start rule is `root`, as xgrammar wants it."""
    rules = [f"{_START} ::= {_expression(Ref(grammar.start))}"]
    rules += [f"{name} ::= {_expression(node)}" for name, node in grammar.rules.items()]
    return "\n".join(rules)


def _expression(node: Node) -> str:
    match node:
        case Ref(name):
            return name
        case Chars(ranges):
            return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in ranges) + "]"
        case Seq(items):
            return "(" + " ".join(map(_expression, items)) + ")" if items else '""'
        case Alt(items):
            return "(" + " | ".join(map(_expression, items)) + ")"
        case Repeat(item, least, most):
            return f"({_expression(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a grammar: {node!r}")


def _char(code_point: int) -> str:
    return f"\\U{code_point:08X}"
