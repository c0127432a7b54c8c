"""Grammars in llguidance's Lark."""

from __future__ import annotations

import re
from itertools import groupby

from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.regex import Alt, Chars, Node, Ref, Repeat, Seq
from specgrammar.grammar.rules import Grammar, has_ref

HEADER = '%llguidance {"no_forcing": true}\n'
"""Starts every grammar. Without it a mask at a forced position holds only the canonical token of the forced
text, although others are legal too and are accepted."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?:#|//)[^\n]*')
_REFUSED = (
    (re.compile(r"%llguidance"), "%llguidance (the backend sets the options)"),
    (re.compile(r"<[^<>\s]+>"), "special tokens (`<...>`), which no grammar may ask for"),
    (re.compile(r"(?m)^\s*[?!]*\w+\s*\["), "attributes of rules (`name[...]`), which cannot be rolled back"),
)


def check_lark(source: str) -> str:
    """The grammar with the header; raises GrammarCompileError for what a matcher could not take back."""
    bare = _QUOTED.sub(" ", source)
    for pattern, what in _REFUSED:
        if pattern.search(bare):
            raise GrammarCompileError(f"llguidance: not supported here: {what}")
    return HEADER + source


def to_lark(grammar: Grammar) -> str:
    """One line per rule. Parts without references become one lexeme each, as large as possible."""
    rules = [f"start: {_rule(Ref(grammar.start))}"] if grammar.start != "start" else []
    rules += [f"{name}: {_rule(node)}" for name, node in grammar.rules.items()]
    return HEADER + "\n".join(rules)


def _rule(node: Node) -> str:
    if not has_ref(node):
        return f"/{_regex(node)}/"
    match node:
        case Ref(name):
            return name
        case Seq(items):
            parts: list[str] = []
            for with_ref, group in groupby(items, has_ref):
                run = tuple(group)
                parts += map(_rule, run) if with_ref else [_rule(Seq(run))]
            return "(" + " ".join(parts) + ")"
        case Alt(items):
            return "(" + " | ".join(map(_rule, items)) + ")"
        case Repeat(item, least, most):
            return f"({_rule(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a grammar: {node!r}")


def _regex(node: Node) -> str:
    match node:
        case Chars(ranges):
            return "[" + "".join(f"{_char(low)}-{_char(high)}" for low, high in ranges) + "]"
        case Seq(items):
            return "(?:" + "".join(map(_regex, items)) + ")"
        case Alt(items):
            return "(?:" + "|".join(map(_regex, items)) + ")"
        case Repeat(item, least, most):
            return f"(?:{_regex(item)}){{{least},{'' if most is None else most}}}"
    raise TypeError(f"no part of a regex: {node!r}")


def _char(code_point: int) -> str:
    return f"\\x{{{code_point:X}}}"
