"""Grammars in llguidance's Lark."""

from __future__ import annotations

import re

from specgrammar.errors import GrammarCompileError
from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar, has_parts
from specgrammar.language.source import MAX_NESTING, MAX_RULES

HEADER = '%llguidance {"no_forcing": true}\n'
"""Starts every grammar. Without it a mask at a forced position holds only the canonical token of the forced
text, although others are legal too and are accepted."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*+"?|(?:#|//)[^\n]*+|/(?:\\.|[^/\\\n])++/?')
_RULE = re.compile(r"(?m)^[ \t]*+[?!]*+\w++[^\n:]*+:")
_REFUSED = (
    (re.compile(r"%llguidance"), "%llguidance (the backend sets the options)"),
    (re.compile(r"<[^<>\s]+>"), "special tokens (`<...>`), which no grammar may ask for"),
    (
        re.compile(r"(?m)^[ \t]*+[?!]*+\w++\s*+\["),
        "attributes of rules (`name[...]`), which cannot be rolled back",
    ),
)


def check_lark(source: str) -> str:
    """The grammar with the header.

    Raises:
        GrammarCompileError: what a matcher could not take back, or more than the native parser survives.
    """
    depth = deepest = 0
    for char in source:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    if deepest > MAX_NESTING:
        raise GrammarCompileError(f"grammar: brackets are nested {deepest} deep; at most {MAX_NESTING}")
    num_rules = len(_RULE.findall(source))
    if num_rules > MAX_RULES:
        raise GrammarCompileError(f"grammar: {num_rules} rules; at most {MAX_RULES}")
    bare = _QUOTED.sub(" ", source)
    for pattern, what in _REFUSED:
        if pattern.search(bare):
            raise GrammarCompileError(f"llguidance: not supported here: {what}")
    return HEADER + source


def to_lark(grammar: Grammar) -> str:
    """One line per rule."""
    rules = [f"start: {grammar.start}"] if grammar.start != "start" else []
    rules += [f"{name}: {_rule(node)}" for name, node in grammar.rules.items()]
    return HEADER + "\n".join(rules)


def _rule(node: Node) -> str:
    match node:
        case Ref(name):
            return name
        case Lexeme(item):
            return f"/{_regex(item)}/"
        case _ if not has_parts(node):
            return f"/{_regex(node)}/"
        case Seq(items):
            return "(" + " ".join(map(_rule, items)) + ")"
        case Alt(items):
            lexemes = [item.item for item in items if isinstance(item, Lexeme)]
            others = [item for item in items if not isinstance(item, Lexeme)]
            joined = [f"/{_regex(Alt(tuple(lexemes)))}/"] if lexemes else []
            return "(" + " | ".join([*joined, *map(_rule, others)]) + ")"
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
