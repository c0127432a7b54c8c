"""Regex nodes in xgrammar's EBNF."""

from __future__ import annotations

from specgrammar.grammar.regex import Alt, Chars, Node, Repeat, Seq


def to_ebnf(node: Node) -> str:
    """A grammar whose root rule is the node."""
    return f"root ::= {_expression(node)}"


def _expression(node: Node) -> str:
    match node:
        case Chars(ranges):
            return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in ranges) + "]"
        case Seq(items):
            return "(" + " ".join(map(_expression, items)) + ")" if items else '""'
        case Alt(items):
            return "(" + " | ".join(map(_expression, items)) + ")"
        case Repeat(item, least, most):
            return f"({_expression(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a parsed regex: {node!r}")


def _char(code_point: int) -> str:
    return f"\\U{code_point:08X}"
