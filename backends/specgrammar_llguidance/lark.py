"""Regex nodes in llguidance's Lark."""

from __future__ import annotations

from specgrammar.grammar.regex import Alt, Chars, Node, Repeat, Seq

HEADER = '%llguidance {"no_forcing": true}\n'
"""Starts every grammar. Without it a mask at a forced position holds only the canonical token of the forced
text, although others are legal too and are accepted."""


def to_lark(node: Node) -> str:
    """A grammar whose start rule is the node."""
    return f"{HEADER}start: /{_expression(node)}/"


def _expression(node: Node) -> str:
    match node:
        case Chars(ranges):
            return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in ranges) + "]"
        case Seq(items):
            return "(?:" + "".join(map(_expression, items)) + ")"
        case Alt(items):
            return "(?:" + "|".join(map(_expression, items)) + ")"
        case Repeat(item, least, most):
            return f"(?:{_expression(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a parsed regex: {node!r}")


def _char(code_point: int) -> str:
    return f"\\x{{{code_point:X}}}"
