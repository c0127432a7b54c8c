"""One sequence's state on llguidance."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.native import (
    BitmaskGuard,
    check_filled,
    check_rollback,
    check_row,
    ended,
    one_line,
)
from specgrammar.protocols.abilities import NativeCalls, WalkCalls
from specgrammar.protocols.grammar import Vocabulary
from specgrammar_llguidance.calls import MatcherState, NativeTable


class LLGuidanceMatcher:
    """A `GrammarMatcher` around `llguidance.LLMatcher`.

    The stop token stays outside: llguidance counts it as a step only where the grammar could also have gone
    on. Only `try_consume_tokens` moves the native matcher, because a failed `consume_token` poisons it for
    good; where a limit does that too, it is made again from the grammar and the accepted tokens.

    A native matcher remembers its last mask, and gives it again where three things are equal: how many lexemes
    have ended, the state of the lexer, and whether a lexeme has begun. A rollback does not make it forget, so
    that of two siblings in a tree the second could get the mask of the first. Here a remembered mask always
    belongs to a place on one path with ours: above, here or below. `_mask_depth` is the place's number of text
    tokens. A rollback leaves it above or below; only an accept can turn off the path to a place below, and
    then the mask of our own place is computed first, which nobody reads.

    On one path an equal key means an equal mask. A lexeme that ends appends a row to the parser's table; none
    is changed later (what could, `stop` and `max_tokens`, cannot be rolled back and is refused), so with as
    many rows two places have the same table, and the mask is a function of the table and of the rest of the
    key. Stop tokens are set outside of what is remembered. Where only they are legal nothing is computed, but
    nothing lies below either. A copy has the same memory of the same place; a matcher that is made again has
    none.

    A fill that fails (no token fits, or a limit is hit) poisons as well. The matcher is made again, and from
    then on copies fill and take the poison: they cost 0.03 us a token of the history, making it again 1 us.

    `calls.cpp` does what `walk_calls` do, on the same state, and calls the methods here where something fails.
    """

    def __init__(
        self, template: LLMatcher, guard: BitmaskGuard[int], vocabulary: Vocabulary, table: NativeTable
    ) -> None:
        """Start at the beginning of a grammar.

        Args:
            template: a native matcher that nobody moves.
            guard: shared by all matchers of the vocabulary; its handles are addresses.
            vocabulary: what its ids mean.
            table: how native code moves matchers of this vocabulary.
        """
        self._template = template
        self._guard = guard
        self._vocabulary = vocabulary
        self._vocab_size = vocabulary.vocab_size
        self._row_bytes = 4 * vocabulary.num_words
        self._stop_ids = frozenset(vocabulary.stop_ids)
        self._finished = False
        self._unread = np.empty(vocabulary.num_words, np.int32)
        self._state = MatcherState(id(self), template.deep_copy(), [], self._unread.ctypes.data)
        self._table = table
        self._native_calls = (
            None
            if table.address is None
            else NativeCalls(table.address, ctypes.addressof(self._state), id(template))
        )

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        return self._finished

    def accept(self, token: int) -> bool:
        """See `GrammarMatcher.accept`."""
        if self._finished or not 0 <= token < self._vocab_size:
            return False
        if token in self._stop_ids:
            self._finished = self._state.native.is_accepting()
            if not self._finished:
                return False
        else:
            self._before_a_turn()
            if not self._state.native.try_consume_tokens([token]):
                self._raise_if_poisoned()
                return False
        self._state.tokens.append(token)
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
        num_accepted = 0
        if text:
            self._before_a_turn()
            num_accepted = self._state.native.try_consume_tokens(text)
        self._state.tokens += text[:num_accepted]
        if num_accepted < len(text):
            self._raise_if_poisoned()
        elif num_accepted < len(tokens) and self.accept(tokens[num_accepted]):
            num_accepted += 1
        return num_accepted

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        check_rollback(num_tokens, len(self._state.tokens))
        if not num_tokens:
            return
        num_text_tokens = num_tokens - self._finished
        if num_text_tokens and not self._state.native.rollback(num_text_tokens):
            raise MatcherError(f"llguidance: {one_line(self._state.native.get_error())}")
        del self._state.tokens[-num_tokens:]
        self._finished = False

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """See `GrammarMatcher.fill_bitmask`."""
        address = self._guard.handle(bitmask)
        check_row(bitmask, row)
        if self._finished:
            raise ended(bitmask, row)
        self._fill_row(address + row * self._row_bytes)
        check_filled(bitmask, row)

    def walk_calls(self, bitmask: NDArray[np.int32]) -> WalkCalls:
        """See `SupportsUncheckedWalk`."""
        address, width = self._guard.handle(bitmask), self._row_bytes
        if self._finished:
            raise MatcherError("the sequence has ended: nothing is legal behind a stop token")
        tokens = self._state.tokens

        def accept(token: int) -> None:
            self._before_a_turn()
            if not self._state.native.try_consume_tokens([token]):
                cause = one_line(self._state.native.get_error())
                raise MatcherError(f"llguidance: token id {token} is refused: {cause}")
            tokens.append(token)

        def fill(row: int) -> None:
            self._fill_row(address + row * width)

        def rollback(num_tokens: int) -> None:
            del tokens[-num_tokens:]
            if not self._state.native.rollback(num_tokens):
                self._replay()  # a limit poisoned it while it accepted, which has ended the walk

        return WalkCalls(accept, fill, rollback)

    def native_calls(self) -> NativeCalls | None:
        """See `SupportsNativeCalls`."""
        return None if self._finished else self._native_calls

    def native_moved(self, tokens: Sequence[int]) -> None:
        """See `SupportsNativeCalls`; they are counted when they are accepted."""

    def forced_text(self) -> bytes:
        """See `SupportsForcedTokens`; a copy is asked, since llguidance moves its parser over what it finds."""
        if self._finished or self._state.native.is_accepting():
            return b""
        asked = self._state.native.deep_copy()
        text = asked.compute_ff_bytes()
        if asked.is_error():
            raise MatcherError(f"llguidance: {one_line(asked.get_error())}")
        return text

    def _fill_row(self, address: int) -> None:
        """Write the row of this place; all zero at a dead end, and where it raises."""
        if cause := self._compute_mask(address):
            ctypes.memset(address, 0, self._row_bytes)
            if not cause.startswith("NoExtension"):
                raise MatcherError(f"llguidance: {cause}")

    def _compute_mask(self, address: int) -> str:
        """Write the row of this place; the cause where that failed, the stop tokens being written as legal."""
        filler = self._state.native.deep_copy() if self._state.by_copies else self._state.native
        filler.unsafe_compute_mask_ptr(address, self._row_bytes)
        if filler.is_error():
            if not self._state.by_copies:
                self._state.by_copies = True
                self._replay()
            return one_line(filler.get_error())
        if not self._state.by_copies:
            self._state.mask_depth = len(self._state.tokens)
        return ""

    def _before_a_turn(self) -> None:
        """Call before an accept; see the class."""
        if self._state.mask_depth > len(self._state.tokens):
            self._compute_mask(self._state.unread_row)

    def _raise_if_poisoned(self) -> None:
        if self._state.native.is_error():
            cause = one_line(self._state.native.get_error())
            self._replay()
            raise MatcherError(f"llguidance: {cause}")

    def _replay(self) -> None:
        self._state.native = self._template.deep_copy()
        self._state.mask_depth = 0
        text = self._state.tokens[: len(self._state.tokens) - self._finished]
        if text and self._state.native.try_consume_tokens(text) < len(text):
            raise MatcherError(f"llguidance: lost its state: {one_line(self._state.native.get_error())}")

    def fork(self) -> LLGuidanceMatcher:
        """See `GrammarMatcher.fork`; the fork can be rolled back to the start, like the original."""
        copy = LLGuidanceMatcher(self._template, self._guard, self._vocabulary, self._table)
        copy._state.native = self._state.native.deep_copy()
        copy._state.tokens = self._state.tokens.copy()
        copy._finished = self._finished
        copy._state.mask_depth = self._state.mask_depth
        copy._state.by_copies = self._state.by_copies
        return copy
