"""The Earley parser of the reference backend: any context-free grammar, one immutable set for each byte.

It is the textbook's algorithm on the nodes of `language.regex` as they are. An item is a node, how far in it
the text has come, and the set where it began. Left recursion, ambiguity and empty rules need no care: an item
is added to a set once, and what may be empty is also stepped over at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar

ByteRange: TypeAlias = tuple[int, int]
Word: TypeAlias = tuple[ByteRange, ...]
"""Byte ranges, one after the other: a part of the UTF-8 of a `Chars`."""
Part: TypeAlias = Node | Word
Item: TypeAlias = tuple[int, int, "EarleySet"]
"""The number of a part, what is done of it (items of a `Seq`, rounds of a `Repeat`, bytes of a word, 1 of 1
elsewhere), and where it began."""


class EarleySet:
    """What may be going on behind some bytes. Compared by identity; sets behind it are computed once.

    Attributes:
        waiting: items by the number of the part that they go on with.
        scans: items that go on with a byte, and which bytes.
        accepts: whether the text may end here.
        after: the set behind each byte that was tried; None where the byte is illegal.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, list[Item]] = {}
        self.scans: list[tuple[ByteRange, Item]] = []
        self.accepts = False
        self.after: dict[int, EarleySet | None] = {}


class EarleyParser:
    """Moves over bytes from `start`, by the rules of one grammar; any number of threads may."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._lock = threading.Lock()
        self._numbers: dict[Part, int] = {}
        self._parts: list[Part] = []
        self._empty_rules: set[str] = set()
        rules = grammar.rules.items()
        while more := {n for n, node in rules if self._may_be_empty(node)} - self._empty_rules:
            self._empty_rules |= more
        self._empty: list[bool] = []
        self._prospects: dict[tuple[int, int], tuple[tuple[int, ...], bool]] = {}
        self._root = self._number(Ref(grammar.start))
        self.start: EarleySet = EarleySet()
        self.start.accepts = self._empty[self._root]
        self._close(self.start, [(self._root, 0, self.start)])

    def step(self, state: EarleySet, byte: int) -> EarleySet | None:
        """The set behind a byte; None if it is illegal."""
        with self._lock:
            if byte not in state.after:
                items = [self._advanced(item) for (low, high), item in state.scans if low <= byte <= high]
                state.after[byte] = self._close(EarleySet(), items) if items else None
            return state.after[byte]

    def only_text(self, state: EarleySet, most: int = 100) -> bytes:
        """Byte after byte, up to so many, while exactly one is legal and the text may not end."""
        text = b""
        while not state.accepts and len(text) < most:
            after = [(byte, self.step(state, byte)) for byte in range(256)]
            legal = [(byte, behind) for byte, behind in after if behind is not None]
            if len(legal) != 1:
                break
            byte, state = legal[0]
            text += bytes([byte])
        return text

    def _number(self, part: Part) -> int:
        """The number of a part; a reference and a lexeme have that of what they stand for."""
        while isinstance(part, Ref | Lexeme):
            part = self._grammar.rules[part.name] if isinstance(part, Ref) else part.item
        number = self._numbers.setdefault(part, len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
            self._empty.append(not isinstance(part, tuple) and self._may_be_empty(part))
        return number

    def _may_be_empty(self, node: Node) -> bool:
        match node:
            case Ref(name):
                return name in self._empty_rules
            case Seq(items):
                return all(map(self._may_be_empty, items))
            case Alt(items):
                return any(map(self._may_be_empty, items))
            case Repeat(item, least, _):
                return least == 0 or self._may_be_empty(item)
            case Lexeme(item):
                return self._may_be_empty(item)
            case _:
                return False

    def _close(self, into: EarleySet, items: Iterable[Item]) -> EarleySet:
        """Add the items and all that follows from them without another byte."""
        pending = list(items)
        seen = set(pending)
        while pending:
            item = pending.pop()
            number, done, origin = item
            part = self._parts[number]
            if isinstance(part, tuple) and done < len(part):
                into.scans.append((part[done], item))
                continue
            reached: list[Item] = []
            wanted, complete = self._prospect(number, done)
            for goal in wanted:
                if goal not in into.waiting:
                    into.waiting[goal] = []
                    pending.append((goal, 0, into))
                into.waiting[goal].append(item)
                if self._empty[goal] and not isinstance(part, Repeat):
                    reached.append((number, done + 1, origin))
            if complete and origin is not into:  # one that is empty was stepped over
                into.accepts |= number == self._root and origin is self.start
                reached += map(self._advanced, origin.waiting.get(number, ()))
            for item in reached:
                if item not in seen:
                    seen.add(item)
                    pending.append(item)
        return into

    def _prospect(self, number: int, done: int) -> tuple[tuple[int, ...], bool]:
        """The parts of which one may come next, and whether the part may end here."""
        if (number, done) not in self._prospects:
            part = self._parts[number]
            match part:
                case tuple():
                    complete = done == len(part)
                case Seq(items):
                    complete = done == len(items)
                case Repeat(item, least, _):
                    complete = done >= least or self._may_be_empty(item)
                case _:
                    complete = done == 1
            wanted = tuple(map(self._number, self._next_parts(part, done)))
            self._prospects[number, done] = wanted, complete
        return self._prospects[number, done]

    def _next_parts(self, part: Part, done: int) -> Iterable[Part]:
        match part:
            case Seq(items):
                return items[done : done + 1]
            case Repeat(item, _, most):
                return (item,) if most is None or done < most else ()
            case tuple():
                return ()  # bytes, which `scans` holds
            case _ if done:
                return ()
            case Alt(items):
                return items
            case Chars(ranges):
                return utf8_words(ranges)
        raise TypeError(f"no part of a grammar: {part!r}")

    def _advanced(self, item: Item) -> Item:
        number, done, origin = item
        part = self._parts[number]
        if isinstance(part, Repeat) and part.most is None:
            return number, min(done + 1, part.least), origin  # without a limit, only `least` has to be counted
        return number, done + 1, origin


@lru_cache(maxsize=4096)
def utf8_words(ranges: tuple[tuple[int, int], ...]) -> tuple[Word, ...]:
    """The UTF-8 of code point ranges, as sequences of byte ranges."""
    words: list[Word] = []
    pending = list(ranges)
    while pending:
        low, high = pending.pop()
        limit = next(limit for limit in (0x7F, 0x7FF, 0xFFFF, 0x10FFFF) if low <= limit)
        if high > limit:
            pending += [(low, limit), (limit + 1, high)]
            continue
        split = _split_at(low, high)
        if split is not None:
            pending += [(low, split), (split + 1, high)]
            continue
        first, last = chr(low).encode(), chr(high).encode()
        words.append(tuple(zip(first, last, strict=True)))
    return tuple(words)


def _split_at(low: int, high: int) -> int | None:
    """Where to cut a range of one length so that the bytes behind the first different one are unrestricted."""
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if low >> bits != high >> bits:
            if low & mask:
                return low | mask
            if high & mask != mask:
                return (high & ~mask) - 1
    return None
