"""One sequence's state on llguidance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.grammar.native import (
    BitmaskGuard,
    check_filled,
    check_rollback,
    check_row,
    dead_end,
    ended,
    one_line,
)
from specgrammar.protocols.abilities import WalkCalls
from specgrammar.protocols.grammar import Vocabulary


class LLGuidanceMatcher:
    """A `GrammarMatcher` around `llguidance.LLMatcher`.

    The stop token stays outside: llguidance counts it as a step only where the grammar could also have gone
    on. Only `try_consume_tokens` moves the native matcher, because a failed `consume_token` poisons it for
    good; where a limit does that too, it is made again from the grammar and the accepted tokens.

    Rows are filled by a copy. A native matcher remembers its last mask by the number of lexemes and the state
    of the lexer, and a rollback does not make it forget: of two siblings in a tree, the second could get the
    mask of the first. A copy of one that never fills has nothing to remember (2 us, and 0.04 us a lexeme).
    """

    def __init__(self, template: LLMatcher, guard: BitmaskGuard[int], vocabulary: Vocabulary) -> None:
        """Start at the beginning of a grammar.

        Args:
            template: a native matcher that nobody moves.
            guard: shared by all matchers of the vocabulary; its handles are addresses.
            vocabulary: what its ids mean.
        """
        self._template = template
        self._native = template.deep_copy()
        self._guard = guard
        self._vocabulary = vocabulary
        self._vocab_size = vocabulary.vocab_size
        self._row_bytes = 4 * vocabulary.num_words
        self._stop_ids = frozenset(vocabulary.stop_ids)
        self._tokens: list[int] = []
        self._finished = False

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        return self._finished

    def accept(self, token: int) -> bool:
        """See `GrammarMatcher.accept`."""
        if self._finished or not 0 <= token < self._vocab_size:
            return False
        if token in self._stop_ids:
            self._finished = self._native.is_accepting()
            if not self._finished:
                return False
        elif not self._native.try_consume_tokens([token]):
            self._raise_if_poisoned()
            return False
        self._tokens.append(token)
        return True

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        """See `GrammarMatcher.accept_prefix`."""
        if self._finished:
            return 0
        text: list[int] = []
        for token in tokens:
            if token in self._stop_ids or not 0 <= token < self._vocab_size:
                break
            text.append(token)
        num_accepted = self._native.try_consume_tokens(text) if text else 0
        self._tokens += text[:num_accepted]
        if num_accepted < len(text):
            self._raise_if_poisoned()
        elif num_accepted < len(tokens) and self.accept(tokens[num_accepted]):
            num_accepted += 1
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        check_rollback(num_tokens, len(self._tokens))
        if not num_tokens:
            return
        num_text_tokens = num_tokens - self._finished
        if num_text_tokens and not self._native.rollback(num_text_tokens):
            raise MatcherError(f"llguidance: {one_line(self._native.get_error())}")
        del self._tokens[-num_tokens:]
        self._finished = False

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """See `GrammarMatcher.fill_bitmask`."""
        address = self._guard.handle(bitmask)
        check_row(bitmask, row)
        if self._finished:
            raise ended(bitmask, row)
        filler = self._native.deep_copy()
        filler.unsafe_compute_mask_ptr(address + row * self._row_bytes, self._row_bytes)
        if filler.is_error():
            raise _failure(filler, bitmask, row)
        check_filled(bitmask, row)

    def walk_calls(self, bitmask: NDArray[np.int32]) -> WalkCalls:
        """See `SupportsUncheckedWalk`."""
        address, width = self._guard.handle(bitmask), self._row_bytes
        if self._finished:
            raise MatcherError("the sequence has ended: nothing is legal behind a stop token")
        native = self._native
        consume, copy = native.try_consume_tokens, native.deep_copy

        def accept(token: int) -> None:
            if not consume([token]):
                raise MatcherError(f"llguidance: token id {token} is refused: {one_line(native.get_error())}")

        def fill(row: int) -> None:
            filler = copy()
            filler.unsafe_compute_mask_ptr(address + row * width, width)
            if filler.is_error():
                error = _failure(filler, bitmask, row)
                if not isinstance(error, DeadEndError):  # the row is all zero then, and a walk looks at it
                    raise error

        def rollback(num_tokens: int) -> None:
            if not native.rollback(num_tokens):
                self._replay()  # a limit poisoned it while it accepted, which has ended the walk

        return WalkCalls(accept, fill, rollback)

    def _raise_if_poisoned(self) -> None:
        if self._native.is_error():
            cause = one_line(self._native.get_error())
            self._replay()
            raise MatcherError(f"llguidance: {cause}")

    def _replay(self) -> None:
        self._native = self._template.deep_copy()
        text = self._tokens[: len(self._tokens) - self._finished]
        if text and self._native.try_consume_tokens(text) < len(text):
            raise MatcherError(f"llguidance: lost its state: {one_line(self._native.get_error())}")

    def fork(self) -> LLGuidanceMatcher:
        """See `GrammarMatcher.fork`; the fork can be rolled back to the start, like the original."""
        copy = LLGuidanceMatcher(self._template, self._guard, self._vocabulary)
        copy._native = self._native.deep_copy()
        copy._tokens = self._tokens.copy()
        copy._finished = self._finished
        return copy


def _failure(filler: LLMatcher, bitmask: NDArray[np.int32], row: int) -> DeadEndError | MatcherError:
    """Clear the row that a filler has failed at, and make the error.

    One that finds no token or hits a limit writes the stop tokens as legal.
    """
    bitmask[row] = 0
    cause = one_line(filler.get_error())
    return dead_end() if cause.startswith("NoExtension") else MatcherError(f"llguidance: {cause}")
