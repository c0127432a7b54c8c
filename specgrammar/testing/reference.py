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
from specgrammar.grammar.frontend import rules_of
from specgrammar.grammar.regex import Alt, Chars, Node, Ref, Repeat, Seq
from specgrammar.grammar.rules import Grammar
from specgrammar.grammar.schema_keywords import UNENFORCED
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary

ByteRange: TypeAlias = tuple[int, int]
Stack: TypeAlias = tuple["Node | ByteRange", "Stack"] | None
"""What has to come, first thing on top; None when nothing more has to come."""
State: TypeAlias = frozenset[Stack]


@dataclass(frozen=True, eq=False)
class ReferenceCompiled:
    """A `CompiledGrammar`: the rules themselves."""

    spec: GrammarSpec
    weakened: tuple[str, ...]
    rules: Grammar


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
            raise GrammarCompileError(
                "the reference backend reads no grammar texts; use a schema, regex or choice"
            )
        rules, weakened = rules_of(spec, self.facts)
        return ReferenceCompiled(spec, weakened, rules)

    def matcher(self, compiled: ReferenceCompiled) -> ReferenceMatcher:
        """See `GrammarBackend.matcher`."""
        return ReferenceMatcher(compiled.rules, self._vocabulary)


class ReferenceMatcher:
    """A `GrammarMatcher` over immutable states."""

    def __init__(self, rules: Grammar, vocabulary: Vocabulary) -> None:
        self._rules = rules
        self._vocabulary = vocabulary
        self._history: list[State] = [_closure(frozenset([(Ref(rules.start), None)]), rules)]
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
        copy = ReferenceMatcher(self._rules, self._vocabulary)
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
            state = _step(state, byte, self._rules)
            if not state:
                return None
        return state


def _step(state: State, byte: int, rules: Grammar) -> State:
    after: set[Stack] = set()
    for stack in state:
        if stack is not None:
            top, rest = stack
            assert isinstance(top, tuple)
            if top[0] <= byte <= top[1]:
                after.add(rest)
    return _closure(frozenset(after), rules)


def _closure(state: State, rules: Grammar) -> State:
    """Unfold the tops of all stacks until each is a byte range."""
    seen: set[Stack] = set(state)
    pending = list(state)
    ready: set[Stack] = set()
    while pending:
        stack = pending.pop()
        if stack is None or isinstance(stack[0], tuple):
            ready.add(stack)
            continue
        for unfolded in _unfold(stack[0], stack[1], rules):
            if unfolded not in seen:
                seen.add(unfolded)
                pending.append(unfolded)
    return frozenset(ready)


def _unfold(node: Node | ByteRange, rest: Stack, rules: Grammar) -> list[Stack]:
    """What a node on top of a stack may turn into."""
    match node:
        case Ref(name):
            return [(rules.rules[name], rest)]
        case Chars(ranges):
            return [_push(sequence, rest) for sequence in _utf8(ranges)]
        case Seq(items):
            return [_push(items, rest)]
        case Alt(items):
            return [(item, rest) for item in items]
        case Repeat(item, least, most):
            fewer: Node = Repeat(item, max(0, least - 1), None if most is None else most - 1)
            again: list[Stack] = (
                [] if most == 0 else [(item, rest if fewer == Repeat(item, 0, 0) else (fewer, rest))]
            )
            return again if least else [rest, *again]
    raise TypeError(f"no part of a grammar: {node!r}")


def _push(items: Sequence[Node | ByteRange], rest: Stack) -> Stack:
    for item in reversed(items):
        rest = (item, rest)
    return rest


@lru_cache(maxsize=4096)
def _utf8(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[ByteRange, ...], ...]:
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
