"""`ReferenceBackend`: slow and plain, the model that other backends are tested against.

It walks the rules of `grammar.rules` as a set of stacks over bytes, and tries every token of the vocabulary for
a mask. States are immutable; the history is a list of them, so that a rollback is a pop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, GrammarCompileError, MatcherError
from specgrammar.language.frontend import rules_of
from specgrammar.language.regex import Alt, Chars, Lexeme, Node, Ref, Repeat, Seq
from specgrammar.language.rules import Grammar
from specgrammar.language.schema_keywords import UNENFORCED
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec, Vocabulary

ByteRange: TypeAlias = tuple[int, int]
Item: TypeAlias = int | ByteRange
"""A node, as its number in a `_Walker`, or a range of bytes."""
Stack: TypeAlias = tuple[Item, "Stack"] | None
"""What has to come, first thing on top; None when nothing more has to come."""
State: TypeAlias = frozenset[Stack]


@dataclass(frozen=True, eq=False)
class ReferenceCompiled:
    """A `CompiledGrammar`: the rules themselves."""

    spec: GrammarSpec
    weakened: tuple[str, ...]
    walker: _Walker


class ReferenceBackend:
    """A `GrammarBackend` for every kind but `grammar`."""

    api_version: Literal[1] = 1
    facts = BackendFacts(
        max_rollback=None,
        thread_safe=True,
        grammar_syntaxes=frozenset(),
        unenforced_keywords=UNENFORCED,
    )

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        return self._vocabulary

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        """See `GrammarBackend.compile`."""
        if spec.kind == "grammar":
            raise GrammarCompileError("the reference backend reads no grammar texts; use another kind")
        rules, weakened = rules_of(spec, self.facts)
        return ReferenceCompiled(spec, weakened, _Walker(rules))

    def matcher(self, compiled: CompiledGrammar) -> ReferenceMatcher:
        """See `GrammarBackend.matcher`."""
        if not isinstance(compiled, ReferenceCompiled):
            raise MatcherError(
                f"reference: the grammar was compiled by another backend ({type(compiled).__name__})"
            )
        return ReferenceMatcher(compiled.walker, self._vocabulary)


class ReferenceMatcher:
    """A `GrammarMatcher` over immutable states."""

    def __init__(self, walker: _Walker, vocabulary: Vocabulary) -> None:
        self._walker = walker
        self._vocabulary = vocabulary
        self._history: list[State] = [walker.start]
        self._finished = False

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        return self._finished

    def accept(self, token: int) -> bool:
        """See `GrammarMatcher.accept`."""
        state = self._after(token)
        if state is None:
            return False
        self._finished = token in self._vocabulary.stop_ids
        self._history.append(state)
        return True

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        """See `GrammarMatcher.accept_prefix`."""
        for num_accepted, token in enumerate(tokens):
            if not self.accept(token):
                return num_accepted
        return len(tokens)

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        if not 0 <= num_tokens < len(self._history):
            raise MatcherError(f"rollback({num_tokens}): {len(self._history) - 1} tokens were accepted")
        if num_tokens:
            del self._history[-num_tokens:]
            self._finished = False

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> bool:
        """See `GrammarMatcher.fill_bitmask`."""
        size, num_words = self._vocabulary.vocab_size, self._vocabulary.num_words
        if bitmask.dtype != np.int32 or bitmask.ndim != 2 or bitmask.shape[1] != num_words:
            raise MatcherError(
                f"the bitmask is {bitmask.dtype}{list(bitmask.shape)}; int32[rows, {num_words}] expected"
            )
        if not bitmask.flags.c_contiguous or not bitmask.flags.writeable:
            raise MatcherError("the bitmask has to be C-contiguous and writeable")
        if not 0 <= row < len(bitmask):
            raise MatcherError(f"row {row} is outside the bitmask's {len(bitmask)} rows")
        legal = np.zeros(32 * num_words, np.bool_)
        legal[:size] = [self._after(token) is not None for token in range(size)]
        bitmask[row] = np.packbits(legal, bitorder="little").view("<i4")
        if not legal.any():
            raise DeadEndError("nothing is legal here, not even a stop token")
        return not legal[:size].all()

    def fork(self) -> ReferenceMatcher:
        """See `GrammarMatcher.fork`."""
        copy = ReferenceMatcher(self._walker, self._vocabulary)
        copy._history = self._history.copy()
        copy._finished = self._finished
        return copy

    def _after(self, token: int) -> State | None:
        """The state behind a token; None if it is illegal."""
        vocabulary, state = self._vocabulary, self._history[-1]
        if self._finished or not 0 <= token < vocabulary.vocab_size:
            return None
        if token in vocabulary.stop_ids:
            return state if None in state else None
        text = vocabulary.tokens[token]
        if token in vocabulary.special_ids or not text:
            return None
        for byte in text:
            state = self._walker.step(state, byte)
            if not state:
                return None
        return state


class _Walker:
    """Moves states of one grammar over bytes. Nodes are numbered, which makes stacks cheap to compare."""

    def __init__(self, rules: Grammar) -> None:
        self._rules = rules
        self._numbers: dict[Node, int] = {}
        self._nodes: list[Node] = []
        self._unfolded: dict[int, list[list[Item]]] = {}
        self.start = self._closure({(self._number(Ref(rules.start)), None)})

    def step(self, state: State, byte: int) -> State:
        """The state behind a byte; empty if it is illegal."""
        after: set[Stack] = set()
        for stack in state:
            if stack is not None:
                top, rest = stack
                assert not isinstance(top, int)
                if top[0] <= byte <= top[1]:
                    after.add(rest)
        return self._closure(after)

    def _number(self, node: Node) -> int:
        number = self._numbers.setdefault(node, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _closure(self, stacks: set[Stack]) -> State:
        """Unfold the tops of all stacks until each is a byte range."""
        seen = set(stacks)
        pending = list(stacks)
        ready: set[Stack] = set()
        while pending:
            stack = pending.pop()
            if stack is None or not isinstance(stack[0], int):
                ready.add(stack)
                continue
            for items in self._unfold(stack[0]):
                unfolded = stack[1]
                for item in reversed(items):
                    unfolded = (item, unfolded)
                if unfolded not in seen:
                    seen.add(unfolded)
                    pending.append(unfolded)
        return frozenset(ready)

    def _unfold(self, number: int) -> list[list[Item]]:
        """What may stand in place of a node: sequences of items."""
        if number not in self._unfolded:
            self._unfolded[number] = self._alternatives(self._nodes[number])
        return self._unfolded[number]

    def _alternatives(self, node: Node) -> list[list[Item]]:
        match node:
            case Ref(name):
                return [[self._number(self._rules.rules[name])]]
            case Chars(ranges):
                return [list(sequence) for sequence in utf8_ranges(ranges)]
            case Seq(items):
                return [[self._number(item) for item in items]]
            case Alt(items):
                return [[self._number(item)] for item in items]
            case Lexeme(item):
                return [[self._number(item)]]
            case Repeat(item, least, most):
                fewer = Repeat(item, max(0, least - 1), None if most is None else most - 1)
                once_more: list[list[Item]] = [] if most == 0 else [[self._number(item), self._number(fewer)]]
                return once_more if least else [[], *once_more]
        raise TypeError(f"no part of a grammar: {node!r}")


@lru_cache(maxsize=4096)
def utf8_ranges(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[ByteRange, ...], ...]:
    """The UTF-8 of code point ranges, as sequences of byte ranges."""
    sequences: list[tuple[ByteRange, ...]] = []
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
        sequences.append(tuple(zip(first, last, strict=True)))
    return tuple(sequences)


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
