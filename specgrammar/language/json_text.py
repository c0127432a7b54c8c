"""How JSON values are spelt: strings, constants and the white space between values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specgrammar.language.regex import (
    ANY_CHAR,
    EMPTY,
    Alt,
    Chars,
    Lexeme,
    Node,
    Repeat,
    Seq,
    chars,
    literal,
)
from specgrammar.language.rules import alt, optional, seq
from specgrammar.protocols.grammar import Whitespace

MAX_WHITESPACE = 32
"""Most white space characters in one gap where the model may choose."""


@dataclass(frozen=True)
class Layout:
    """The text between values.

    Attributes:
        gap: between a bracket and what it encloses.
        item: between items.
        key: between a name and its value.
    """

    gap: Node
    item: Node
    key: Node

    def enclose(self, brackets: str, inner: Node) -> Node:
        """The inner text between an opening and a closing bracket."""
        opening, closing = map(literal, brackets)
        return seq(Lexeme(seq(opening, self.gap)), inner, Lexeme(seq(self.gap, closing)))

    def enclose_all(self, brackets: str, parts: list[Node]) -> Node:
        """The parts, separated, between brackets."""
        inner: list[Node] = []
        for part in parts:
            inner += [self.item, part] if inner else [part]
        return self.enclose(brackets, seq(*inner))


_GAP = Repeat(Chars(((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))), 0, MAX_WHITESPACE)


def _layout(gap: Node, item: Node, key: Node) -> Layout:
    return Layout(gap, Lexeme(item), Lexeme(key))


LAYOUTS: dict[Whitespace, Layout] = {
    "spaced": _layout(EMPTY, literal(", "), literal(": ")),
    "compact": _layout(EMPTY, literal(","), literal(":")),
    "flexible": _layout(_GAP, seq(_GAP, literal(","), _GAP), seq(_GAP, literal(":"), _GAP)),
}

NULL, TRUE, FALSE = (Lexeme(literal(word)) for word in ("null", "true", "false"))
QUOTE = literal('"')
_SPECIAL = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_RAW = chars(*_SPECIAL, negate=True) or ANY_CHAR
_HEX = Chars(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))


def _one_of(text: str) -> Chars:
    return chars(*((ord(c), ord(c)) for c in text)) or ANY_CHAR


def _hex(first: str, second: str | None = None) -> Node:
    r"""`\u` and four digits whose first (and second) are among the given ones."""
    if second is None:
        return seq(literal("\\u"), _one_of(first), Repeat(_HEX, 3, 3))
    return seq(literal("\\u"), _one_of(first), _one_of(second), Repeat(_HEX, 2, 2))


CHAR = Alt(
    (
        _RAW,
        seq(literal("\\"), _one_of('"\\/bfnrt')),
        _hex("0123456789abcefABCEF"),
        _hex("dD", "01234567"),
        seq(_hex("dD", "89abAB"), _hex("dD", "cdefCDEF")),
    )
)
"""One character of a string in any of its spellings; never half a surrogate pair."""

KEY_CHAR = Alt((_RAW, *(literal(json.dumps(chr(c))[1:-1]) for c in (*range(0x20), 0x22, 0x5C))))
"""One character in the one spelling that `json.dumps(..., ensure_ascii=False)` has for it."""


def string(least: int = 0, most: int | None = None) -> Node:
    """Any string of that many characters."""
    return Lexeme(seq(QUOTE, Repeat(CHAR, least, most), QUOTE))


def string_matching(pattern: Node) -> Node:
    """The strings whose text the pattern matches; spelt as `KEY_CHAR` does."""
    return Lexeme(seq(QUOTE, _spelt(pattern), QUOTE))


def _spelt(node: Node) -> Node:
    match node:
        case Chars(ranges):
            raw = _minus_special(ranges)
            escaped = [
                literal(json.dumps(chr(code))[1:-1])
                for low, high in _SPECIAL
                for code in range(low, high + 1)
                if any(a <= code <= b for a, b in ranges)
            ]
            return alt(raw, *escaped) or EMPTY
        case Seq(items):
            return Seq(tuple(map(_spelt, items)))
        case Alt(items):
            return Alt(tuple(map(_spelt, items)))
        case Repeat(item, least, most):
            return Repeat(_spelt(item), least, most)
        case _:
            return node


def _minus_special(ranges: tuple[tuple[int, int], ...]) -> Chars | None:
    kept = []
    for low, high in ranges:
        for raw_low, raw_high in _RAW.ranges:
            if max(low, raw_low) <= min(high, raw_high):
                kept.append((max(low, raw_low), min(high, raw_high)))
    return chars(*kept) if kept else None


def key_other_than(names: list[str]) -> Node:
    """Any name of a member but these."""
    return Lexeme(seq(QUOTE, _other_than(frozenset(names)), QUOTE))


def _other_than(names: frozenset[str]) -> Node:
    if not names:
        return Repeat(KEY_CHAR, 0, None)
    heads = sorted({name[0] for name in names if name})
    others = chars(*((ord(c), ord(c)) for c in heads), negate=True) or ANY_CHAR
    branches = [seq(_spelt(others), Repeat(KEY_CHAR, 0, None))]
    for head in heads:
        tails = frozenset(name[1:] for name in names if name.startswith(head))
        branches.append(seq(_spelt(literal(head)), _other_than(tails)))
    some = Alt(tuple(branches))
    return some if "" in names else optional(some)


def constant(value: Any, layout: Layout) -> Node:
    r"""Exactly this value. Strings may be spelt with or without `\u` for what is not ASCII."""
    if isinstance(value, list):
        return layout.enclose_all("[]", [constant(item, layout) for item in value])
    if isinstance(value, dict):
        return layout.enclose_all(
            "{}", [seq(constant(k, layout), layout.key, constant(v, layout)) for k, v in value.items()]
        )
    spellings = (json.dumps(value, ensure_ascii=False), json.dumps(value))
    return Lexeme(alt(*map(literal, spellings)) or EMPTY)
