"""One sequence's state on xgrammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.native import BitmaskGuard, check_filled, check_rollback, check_row, ended, one_line
from specgrammar.protocols.abilities import NativeCalls, WalkCalls
from specgrammar_xgrammar.calls import NativeTable

ENDS = 2
"""What `legal` says of a stop token."""


class XGrammarMatcher:
    """A `GrammarMatcher` around `xgrammar.GrammarMatcher`.

    xgrammar takes a stop token as one step, so `rollback` is its own. What is added: it would print a warning
    for every token behind the end and for special ids, and pass a negative rollback silently.
    """

    def __init__(
        self,
        native: xgrammar.GrammarMatcher,
        guard: BitmaskGuard[Any],
        legal: bytes,
        table: NativeTable,
        compiled: object,
    ) -> None:
        """Wrap a native matcher.

        Args:
            native: at the start of its grammar, or a fork (then `accept` counts from there).
            guard: shared by all matchers of the vocabulary.
            legal: per token id, `ENDS` for a stop token, 0 for other special ids, 1 for text.
            table: how native code moves matchers of this vocabulary.
            compiled: what the matcher is of; it lives as long, so that its `id` is of no other grammar.
        """
        self._native = native
        self._guard = guard
        self._legal = legal
        self._num_accepted = 0
        self._finished = False
        # The bound functions of the handle: the library's Python wrapper costs as much as a small fill.
        handle: Any = native._handle
        self._accept_token = handle.accept_token
        self._fill = handle.fill_next_token_bitmask
        self._is_terminated = handle.is_terminated
        self._native_rollback = handle.rollback
        self._find_forced = handle.find_jump_forward_string
        self._table = table
        self._compiled = compiled
        self._native_calls = (
            None if table.address is None else NativeCalls(table.address, handle.__chandle__(), id(compiled))
        )

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        return self._finished

    def accept(self, token: int) -> bool:
        """See `GrammarMatcher.accept`."""
        if self._finished or not 0 <= token < len(self._legal) or not self._legal[token]:
            return False
        if not self._accept_token(token, False):
            return False
        self._num_accepted += 1
        if self._legal[token] == ENDS:
            self._finished = self._is_terminated()
        return True

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        """See `GrammarMatcher.accept_prefix`."""
        accept = self.accept
        for num_accepted, token in enumerate(tokens):
            if not accept(token):
                return num_accepted
        return len(tokens)

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        check_rollback(num_tokens, self._num_accepted)
        if num_tokens:
            self._native_rollback(num_tokens)
            self._num_accepted -= num_tokens
            self._finished = False

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """See `GrammarMatcher.fill_bitmask`."""
        handle = self._guard.handle(bitmask)
        check_row(bitmask, row)
        if self._finished:
            raise ended(bitmask, row)
        try:
            self._fill(handle, row, False)
        except RuntimeError as error:
            raise MatcherError(f"xgrammar: {one_line(error)}") from error
        check_filled(bitmask, row)

    def walk_calls(self, bitmask: NDArray[np.int32]) -> WalkCalls:
        """See `SupportsUncheckedWalk`."""
        handle = self._guard.handle(bitmask)
        if self._finished:
            raise MatcherError("the sequence has ended: nothing is legal behind a stop token")
        native_fill, native_accept = self._fill, self._accept_token

        def accept(token: int) -> None:
            if not native_accept(token, False):
                raise MatcherError(f"xgrammar: token id {token} is in its row, but is refused")

        def fill(row: int) -> None:
            native_fill(handle, row, False)

        return WalkCalls(accept, fill, self._native_rollback)

    def native_calls(self) -> NativeCalls | None:
        """See `SupportsNativeCalls`."""
        return None if self._finished else self._native_calls

    def native_moved(self, tokens: Sequence[int]) -> None:
        """See `SupportsNativeCalls`."""
        self._num_accepted += len(tokens)

    def forced_text(self) -> bytes:
        """See `SupportsForcedTokens`; xgrammar calls it a jump-forward string."""
        if self._finished:
            return b""
        try:
            text: str = self._find_forced()
        except UnicodeDecodeError as error:  # it ends inside a character; the library makes text of it
            return error.object
        except RuntimeError as error:
            raise MatcherError(f"xgrammar: {one_line(error)}") from error
        return text.encode()

    def fork(self) -> XGrammarMatcher:
        """See `GrammarMatcher.fork`; the fork can be rolled back to the start, like the original."""
        copy = XGrammarMatcher(self._native.fork(), self._guard, self._legal, self._table, self._compiled)
        copy._num_accepted = self._num_accepted
        copy._finished = self._finished
        return copy
