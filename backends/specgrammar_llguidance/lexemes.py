"""Where a tokenizing parser may take lexemes in a context-free grammar that was written without any.

llguidance splits a text into lexemes before it parses, and takes the longest: in `root: word "s"`,
`word: /[a-z]+/` it would never see the last "s". Single characters are always safe, but each costs a step of
the parser, for every token of the vocabulary. So the largest parts without references are tried as lexemes, and
one is taken apart where the longest reading might not be the only one: where a text ends some lexeme and begins
a longer one, and the byte that goes on with the longer one may also come behind the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from specgrammar.language.follow import Follow
from specgrammar.language.regex import EMPTY, Alt, Chars, Lexeme, Node, Repeat, Seq
from specgrammar.language.rules import Grammar, has_parts

_MAX_STEPS = 200_000
"""Pairs of characters to compare for one grammar (0.3 s). If that is not enough, all lexemes are characters."""


def with_lexemes(grammar: Grammar) -> Grammar:
    """The same language with all its characters in lexemes; `grammar` holds none yet."""
    apart: set[Node] = set()
    budget = _Budget(_MAX_STEPS)
    while True:
        marked = _marked(grammar, apart.__contains__)
        unsafe = _unsafe(Follow(marked), budget)
        if budget.exhausted:
            return _marked(grammar, lambda node: not isinstance(node, Chars))
        if not unsafe:
            return marked
        apart |= unsafe


class _Budget:
    def __init__(self, num_steps: int) -> None:
        self._left = num_steps

    @property
    def exhausted(self) -> bool:
        return self._left < 0

    def spend(self, num_steps: int) -> None:
        self._left -= num_steps


def _marked(grammar: Grammar, is_apart: Callable[[Node], bool]) -> Grammar:
    def mark(node: Node) -> Node:
        if node == EMPTY:
            return node
        if not has_parts(node) and not is_apart(node):
            return Lexeme(node)
        match node:
            case Seq(items):
                return Seq(tuple(map(mark, items)))
            case Alt(items):
                return Alt(tuple(map(mark, items)))
            case Repeat(item, least, most):
                return Repeat(mark(item), least, most)
            case _:
                return node

    return Grammar({name: mark(node) for name, node in grammar.rules.items()}, grammar.start)


def _unsafe(follow: Follow, budget: _Budget) -> set[Node]:
    """The parts that may not be lexemes; unfinished if the budget is exhausted."""
    lexemes = [(_Automaton(item), _first_bytes(behind)) for item, behind in follow.lexemes.items()]
    unsafe: set[Node] = set()
    for longer, _ in lexemes:
        if isinstance(longer.node, Chars):
            continue  # nothing is longer than a character and begins with one
        for shorter, behind in lexemes:
            budget.spend(1)
            if budget.exhausted:
                return unsafe
            if behind and longer.begins & shorter.begins and _may_run_on(shorter, longer, behind, budget):
                unsafe.add(longer.node)
                break
    return unsafe


class _Automaton:
    """A node without references as states: what can be read in each, and whether the node may end there.

    Attributes:
        node: the node.
        start: the state before it.
        begins: the bytes that it can begin with, as bits.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._reads: list[tuple[Chars, int] | None] = []
        self._jumps: list[list[int]] = []
        self._end = self._state()
        self.start = self._before(node, self._end)
        self._seen: dict[int, tuple[list[tuple[Chars, int]], bool]] = {}
        self.begins = 0
        for found, _ in self.moves(self.start):
            self.begins |= _first_bytes(found)

    def moves(self, state: int) -> list[tuple[Chars, int]]:
        """Characters that can be read, and the state behind them."""
        return self._look(state)[0]

    def ends(self, state: int) -> bool:
        """Whether the node may end here."""
        return self._look(state)[1]

    def _look(self, state: int) -> tuple[list[tuple[Chars, int]], bool]:
        if state not in self._seen:
            reached = {state}
            pending = [state]
            while pending:
                for after in self._jumps[pending.pop()]:
                    if after not in reached:
                        reached.add(after)
                        pending.append(after)
            reads = (self._reads[point] for point in reached)
            self._seen[state] = [read for read in reads if read is not None], self._end in reached
        return self._seen[state]

    def _state(self, *jumps: int, read: tuple[Chars, int] | None = None) -> int:
        self._jumps.append(list(jumps))
        self._reads.append(read)
        return len(self._reads) - 1

    def _before(self, node: Node, after: int) -> int:
        """The state before a node, with `after` behind it. A limit above 1 counts as none, which adds texts."""
        match node:
            case Chars():
                return self._state(read=(node, after))
            case Seq(items):
                for item in reversed(items):
                    after = self._before(item, after)
                return after
            case Alt(items):
                return self._state(*(self._before(item, after) for item in items))
            case Repeat(item, least, most):
                end = self._state(after)
                before = self._before(item, end)
                if most is None or most > 1:
                    self._jumps[end].append(before)
                return before if least else self._state(before, after)
        raise TypeError(f"no part of a lexeme: {node!r}")


def _may_run_on(shorter: _Automaton, longer: _Automaton, behind: int, budget: _Budget) -> bool:
    """Whether some text ends `shorter`, and a byte in `behind` can go on with `longer`."""
    pairs = {(shorter.start, longer.start)}
    pending = list(pairs)
    while pending and not budget.exhausted:
        at, other_at = pending.pop()
        budget.spend(len(shorter.moves(at)) * len(longer.moves(other_at)))
        for found, after in shorter.moves(at):
            for other, other_after in longer.moves(other_at):
                pair = after, other_after
                if pair in pairs or not _overlap(found, other):
                    continue
                if shorter.ends(after) and any(_first_bytes(n) & behind for n, _ in longer.moves(other_after)):
                    return True
                pairs.add(pair)
                pending.append(pair)
    return False


@lru_cache(maxsize=4096)
def _overlap(one: Chars, other: Chars) -> bool:
    return any(low <= high2 and low2 <= high for low, high in one.ranges for low2, high2 in other.ranges)


@lru_cache(maxsize=4096)
def _first_bytes(found: Chars | None) -> int:
    """The first bytes of the characters in UTF-8, as bits."""
    bits = 0
    for low, high in () if found is None else found.ranges:
        first, last = chr(low).encode()[0], chr(high).encode()[0]
        bits |= (2 << last) - (1 << first)
    return bits
