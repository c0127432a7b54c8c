"""What is still to be read at some place of a grammar: chains of nodes, the names of rules to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Repeat, Seq


@dataclass(frozen=True)
class Mark:
    """A place between two nodes; nothing is read there."""

    name: str


_MANY, _LONG = 3, 64
"""So many alternatives that repeat the same are joined, each at most so often: each time is a rule then."""

BORDER = Mark("border")
"""Between a rule and the characters behind it that were written into it."""
SHARED = Mark("shared")
"""Several alternatives go on with what follows, so it becomes a rule."""


@dataclass(frozen=True, eq=False)
class Fork:
    """One of several, each up to the end."""

    ways: tuple[Rest | None, ...]


Head: TypeAlias = Node | Mark | Fork


@dataclass(frozen=True, eq=False)
class Rest:
    """A head and what follows it, None for nothing. Equal ones are one object, found by identity."""

    head: Head
    tail: Rest | None


class Rests:
    """Makes them."""

    def __init__(self) -> None:
        """Start without any."""
        self._equal: dict[Head, Head] = {}
        self._heads: dict[int, tuple[Head, Head]] = {}
        """By the identity of a head: itself, so that it stays alive, and its first equal. Hashing is dear."""
        self._rests: dict[tuple[int, int], Rest] = {}
        self._forks: dict[tuple[Rest | None, ...], Fork] = {}

    def join(self, head: Head, tail: Rest | None) -> Rest:
        """The head as it is, and then the tail."""
        found = self._heads.get(id(head))
        if found is None:
            found = self._heads[id(head)] = head, self._equal.setdefault(head, head)
        key = id(found[1]), id(tail)
        rest = self._rests.get(key)
        if rest is None:
            rest = self._rests[key] = Rest(found[1], tail)
        return rest

    def push(self, node: Node, tail: Rest | None) -> Rest | None:
        """The node, sequences taken apart, and then the tail."""
        match node:
            case Seq(items):
                for item in reversed(items):
                    tail = self.push(item, tail)
                return tail
            case Lexeme(item):
                return self.push(item, tail)
            case Repeat(_, _, 0):  # a string of no characters
                return tail
            case _:
                return self.join(node, tail)

    def share(self, rest: Rest | None) -> Rest | None:
        """The same behind a mark."""
        return rest if rest is None or rest.head is SHARED else self.join(SHARED, rest)

    def fork(self, ways: Iterable[Rest | None]) -> Rest | None:
        """One of several."""
        unique = tuple(dict.fromkeys(ways))
        if len(unique) == 1:
            return unique[0]
        if unique not in self._forks:
            self._forks[unique] = Fork(unique)
        return self.join(self._forks[unique], None)

    def ways(self, rest: Rest) -> Iterable[Rest | None]:
        """What may follow where the head is a choice. A loop goes on in its own rule."""
        match rest.head:
            case Fork(found):
                return self._factor(found)
            case Alt(items):
                tail = self.share(rest.tail)
                return self._factor([self.push(item, tail) for item in items])
            case Repeat(item, 0, None):
                tail = rest.tail
                if tail is not None and not isinstance(tail.head, Chars):
                    tail = self.share(tail)
                return [tail, self.push(item, self.share(rest))]
            case Repeat(item, 0, most):
                tail = self.share(rest.tail)
                if most is None or most == 1:
                    return [tail, self.push(item, tail)]
                return [tail, self.push(item, self.share(self.join(Repeat(item, 0, most - 1), rest.tail)))]
        raise TypeError(f"no choice: {rest.head!r}")

    def _factor(self, ways: Sequence[Rest | None]) -> list[Rest | None]:
        """Join those that repeat the same: `a b{3} | a b{4} | a b{5}` would be read three times at once."""
        alike: dict[tuple[object, ...], list[Rest | None]] = {}
        others: list[Rest | None] = []
        for way in dict.fromkeys(ways):
            repeated = _repeated(way)
            (others if repeated is None else alike.setdefault(repeated, [])).append(way)
        joined = ([self._without_first(found)] if len(found) >= _MANY else found for found in alike.values())
        return [*others, *chain.from_iterable(joined)]

    def _without_first(self, ways: Iterable[Rest | None]) -> Rest | None:
        """All of these ways, which begin with the same character; it is read once."""
        first: Node | None = None
        tails = []
        for way in ways:
            assert way is not None
            match way.head:
                case Repeat(item, least, most):
                    first = item
                    more = None if most is None else most - 1
                    tails.append(way.tail if more == 0 else self.join(Repeat(item, least - 1, more), way.tail))
                case Chars() as first:
                    tails.append(way.tail)
        assert first is not None
        return self.join(first, self.fork(tails))


def _repeated(way: Rest | None) -> tuple[object, ...] | None:
    """The character that a way repeats, behind another one or at once, and what follows that."""
    before: tuple[Node, ...] = ()
    if way is not None and isinstance(way.head, Chars):
        before, way = (way.head,), way.tail
    if way is not None and isinstance(way.head, Repeat):
        item, least, most = way.head.item, way.head.least, way.head.most
        if isinstance(item, Chars) and least == most and 0 < least <= _LONG:
            return *before, item, way.tail
    return None
