"""Matchers that native code moves by calling Python back: a `SpecgrammarCalls` made of a matcher's methods."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.testing.checks.calls_table import CallsTable, Fill, Move, Reason
from specgrammar.testing.reference import ReferenceMatcher


class CalledBack(ReferenceMatcher):
    """The reference with native calls. What one raises has failed, and its text is the reason.

    Attributes:
        reason: why the last call failed.
    """

    reason = b""

    def native_calls(self) -> NativeCalls | None:
        return None if self._finished else self.calls(self._vocabulary.num_words)

    def native_moved(self, tokens: Sequence[int]) -> None:
        """Counted already: what moves natively is the history."""

    def calls(self, num_words: int) -> NativeCalls:
        """A table that says `num_words`, and this matcher."""
        _MATCHERS[id(self)] = self
        return NativeCalls(ctypes.addressof(_table(num_words)), id(self))

    def native_accept(self, token: int) -> bool:
        assert token not in self._vocabulary.stop_ids, f"a stop token ({token}) was offered"
        return self.accept(token)

    def native_fill(self, row: NDArray[np.int32]) -> None:
        with suppress(DeadEndError):
            self.fill_bitmask(row[None], 0)

    def native_rollback(self, num_tokens: int) -> None:
        self.rollback(num_tokens)


_MATCHERS: WeakValueDictionary[int, CalledBack] = WeakValueDictionary()


@cache
def _table(num_words: int) -> CallsTable:
    """Kept for good, as native code was given its address."""
    words = ctypes.c_int32 * num_words

    def answer(number: int, call: Callable[[CalledBack], object]) -> int:
        matcher = _MATCHERS[number]
        try:
            return int(bool(call(matcher)))
        except Exception as error:
            matcher.reason = str(error).encode(errors="surrogateescape")
            return -1

    def accept(_: int, number: int, token: int) -> int:
        return answer(number, lambda matcher: matcher.native_accept(token))

    def fill(_: int, number: int, row: int) -> int:
        return answer(
            number, lambda matcher: matcher.native_fill(np.ctypeslib.as_array(words.from_address(row)))
        )

    def rollback(_: int, number: int, num_tokens: int) -> int:
        return answer(number, lambda matcher: matcher.native_rollback(num_tokens))

    def reason(_: int, number: int, text: int, size: int) -> None:
        kept = _MATCHERS[number].reason[: size - 1] + b"\0"
        ctypes.memmove(text, kept, len(kept))

    return CallsTable(num_words, Move(accept), Fill(fill), Move(rollback), Reason(reason))
