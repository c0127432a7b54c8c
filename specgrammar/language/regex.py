r"""Regular expressions as nodes that every backend can print in its own notation.

Backends read regular expressions differently (`\d` and `.` alone mean three things in two libraries) and drop
what they do not know. So a regex is parsed once (`language.regex_parser`) and backends only see nodes.

The dialect is what ECMAScript, Python and Rust share: literals, `.` (all but line terminators), classes,
`\d \w \s` and their negations over ASCII, groups (named ones and lazy quantifiers are allowed and change
nothing), `| * + ? {m} {m,} {m,n}`, escapes, and `^`/`$` where a match may begin or end. Look-around,
back-references, word boundaries, flags and Unicode properties are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from specgrammar.errors import GrammarCompileError

MAX_DEPTH = 64
"""Deepest nesting of groups: native parsers recurse, and a stack overflow ends the process."""
MAX_SIZE = 20_000
"""Most character positions once every bounded repetition is written out."""

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class Chars:
    """One character out of sorted, disjoint, inclusive code point ranges without surrogates; never empty."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Seq:
    """One after the other; without items it matches the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    """One of several, at least one."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`least` to `most` times; `most` None has no limit."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    """`^` or `$`; only the parser's raw result holds any."""

    start: bool


@dataclass(frozen=True)
class Ref:
    """A rule of a grammar, by name; no regex holds any (see `language.rules`)."""

    name: str


@dataclass(frozen=True)
class Lexeme:
    """What a tokenizing parser may match as a unit; no regex holds any, and it changes no language.

    Such a parser takes the longest lexeme, so where lexemes begin alike, the longer one has to be the only
    possible reading; the tokens of JSON are like that. It holds no `Ref` and no other lexeme.
    """

    item: Node


Node: TypeAlias = Chars | Seq | Alt | Repeat | Anchor | Ref | Lexeme

EMPTY = Seq(())


def chars(*ranges: tuple[int, int], negate: bool = False) -> Chars | None:
    """The normal form of a character set; None if no character is in it."""
    merged: list[list[int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    if negate:
        edges = [-1, *(edge for pair in merged for edge in pair), MAX_CODE_POINT + 1]
        merged = [[low + 1, high - 1] for low, high in zip(edges[::2], edges[1::2], strict=True)]
    kept = []
    for low, high in merged:
        for part in ((low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high)):
            if part[0] <= part[1]:
                kept.append(part)
    return Chars(tuple(kept)) if kept else None


def _known(*ranges: tuple[int, int], negate: bool = False) -> Chars:
    found = chars(*ranges, negate=negate)
    assert found is not None
    return found


_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((0x09, 0x0D), (0x20, 0x20))
_LINE_ENDS = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))

ANY_CHAR = _known((0, MAX_CODE_POINT))
NOT_LINE_END = _known(*_LINE_ENDS, negate=True)
CLASS_ESCAPES = {
    "d": _known(*_DIGIT),
    "D": _known(*_DIGIT, negate=True),
    "w": _known(*_WORD),
    "W": _known(*_WORD, negate=True),
    "s": _known(*_SPACE),
    "S": _known(*_SPACE, negate=True),
}


def literal(text: str) -> Seq:
    """The node that matches exactly `text`."""
    return Seq(tuple(_known((ord(c), ord(c))) for c in text))


def size(node: Node) -> int:
    """Character positions of the node with its bounded repetitions written out."""
    match node:
        case Seq(items) | Alt(items):
            return sum(map(size, items)) + 1
        case Repeat(item, least, most):
            return size(item) * max(least if most is None else most, 1)
        case _:
            return 1


def without_anchors(node: Node, source: str, *, search: bool) -> Node:
    """Drop the anchors; without one on a side, a search may pass over any text there."""
    gap = (Repeat(ANY_CHAR, 0, None),) if search else ()
    branches: list[Node] = []
    pending: list[Node] = [node]
    while pending:
        branch = pending.pop()
        items = branch.items if isinstance(branch, Seq) else (branch,)
        split = next((i for i in (0, len(items) - 1) if items and _is_anchored_alt(items[i])), None)
        if split is not None:
            inner = items[split]
            assert isinstance(inner, Alt)
            pending += [
                Seq((*items[:split], *_items(choice), *items[split + 1 :])) for choice in reversed(inner.items)
            ]
            continue
        left, right = gap, gap
        while items and items[0] == Anchor(start=True):
            items, left = items[1:], ()
        while items and items[-1] == Anchor(start=False):
            items, right = items[:-1], ()
        if any(map(_has_anchor, items)):
            raise GrammarCompileError(
                f"regex {source[:80]!r}: '^' and '$' are supported where a match begins or ends, nowhere else"
            )
        branches.append(Seq((*left, *items, *right)))
    return branches[0] if len(branches) == 1 else Alt(tuple(branches))


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Seq) else (node,)


def _is_anchored_alt(node: Node) -> bool:
    return isinstance(node, Alt) and _has_anchor(node)


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Seq(items) | Alt(items):
            return any(map(_has_anchor, items))
        case Repeat(item, _, _):
            return _has_anchor(item)
        case _:
            return False
