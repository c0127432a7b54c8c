"""Matchers whose native calls are wrong. `CalledBack` and `Counting` have them right."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from specgrammar.errors import MatcherError
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.testing.checks.abilities import (
    check_abilities_are_whole,
    check_native_moves_are_steps,
    check_native_walks_equal_fills_one_by_one,
)
from specgrammar.testing.reference import ReferenceMatcher
from tests.called_back import CalledBack
from tests.conformance.broken.rejected import rejected


class NativeRemembersRows(CalledBack):
    """By the depth that they are for, so that siblings have one row."""

    def native_calls(self) -> NativeCalls | None:
        self.known: dict[int, Any] = {}
        return super().native_calls()

    def native_fill(self, row: Any) -> None:
        super().native_fill(row)
        row[:] = self.known.setdefault(len(self._history), row.copy())


class NativeStays(CalledBack):
    def native_accept(self, token: int) -> bool:
        return self._after(token) is not None


class NativeRefuses(CalledBack):
    """It knows only the ids of the first word."""

    def native_accept(self, token: int) -> bool:
        return token < 32 and super().native_accept(token)


class NativeMovesAnyway(CalledBack):
    """A step that is refused is a step."""

    def native_accept(self, token: int) -> bool:
        is_legal = super().native_accept(token)
        self._history += [] if is_legal else self._history[-1:]
        return is_legal


class NativeCallsOfAPlace(CalledBack):
    """Each place has a table of its own, which knows no other."""

    def native_calls(self) -> NativeCalls | None:
        native = super().native_calls()
        return native and native._replace(grammar=len(self._history))


class NativeUndoesOne(CalledBack):
    def native_rollback(self, num_tokens: int) -> None:
        self.rollback(min(num_tokens, 1))


class NativeUndoesNothing(CalledBack):
    def native_rollback(self, num_tokens: int) -> None:
        del num_tokens


class NativeAddsBits(CalledBack):
    def native_fill(self, row: Any) -> None:
        before = row.copy()
        super().native_fill(row)
        row |= before


class NativeLeavesWords(CalledBack):
    """A word without a legal id is not written."""

    def native_fill(self, row: Any) -> None:
        words = row.copy()
        super().native_fill(words)
        row[words != 0] = words[words != 0]


class NativeWritesBehindTheRow(CalledBack):
    def native_fill(self, row: Any) -> None:
        super().native_fill(row)
        (ctypes.c_int32 * (len(row) + 1)).from_address(row.ctypes.data)[len(row)] = 0


class NativeFailsAtDeadEnds(CalledBack):
    def native_fill(self, row: Any) -> None:
        self.fill_bitmask(row[None], 0)


class NativeRowsAreTooWide(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        return self.calls(self._vocabulary.num_words + 1)


class NoNativeCallsYet(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        raise NotImplementedError("native_calls")


class NativeBehindTheEnd(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        return self.calls(self._vocabulary.num_words)


class NativeCallsOfTheOriginal(CalledBack):
    """A fork hands out what its original has."""

    def native_calls(self) -> NativeCalls | None:
        self.original = getattr(self, "original", self)
        return super().native_calls() and CalledBack.native_calls(self.original)

    def fork(self) -> Any:
        copy = super().fork()
        copy.__dict__["original"] = getattr(self, "original", self)
        return copy


class Counting(CalledBack):
    """Counts what it can undo, as wrappers of native libraries do."""

    room = 0

    def accept(self, token: int) -> bool:
        is_legal = super().accept(token)
        self.room += is_legal
        return is_legal

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > self.room:
            raise MatcherError(f"rollback({num_tokens}): {self.room} tokens were accepted")
        super().rollback(num_tokens)
        self.room -= num_tokens

    def fork(self) -> Any:
        copy = super().fork()
        copy.__dict__["room"] = self.room
        return copy

    def native_accept(self, token: int) -> bool:
        return super().accept(token)

    def native_rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)

    def native_moved(self, tokens: Sequence[int]) -> None:
        self.room += len(tokens)


class NativeMovesAreForgotten(Counting):
    def native_moved(self, tokens: Sequence[int]) -> None:
        del tokens


class NativeMovesAreMadeAgain(CalledBack):
    def native_moved(self, tokens: Sequence[int]) -> None:
        self.accept_prefix(tokens)


class NativeCallsAlone(ReferenceMatcher):
    def native_calls(self) -> None:
        return


_NATIVE = check_native_walks_equal_fills_one_by_one
_MOVES = check_native_moves_are_steps

BROKEN_NATIVE_CALLS = [
    rejected(fault, make, check, finds)
    for fault, make, check, finds in (
        (
            "a native fill remembers rows by depth",
            NativeRemembersRows,
            _NATIVE,
            r"walk gives node \d the tokens",
        ),
        ("a native accept does not move", NativeStays, _NATIVE, "walk gives node|failed: .* rollback"),
        (
            "a native accept refuses what has a bit",
            NativeRefuses,
            _NATIVE,
            r"id \d+ in its row, but does not acc",
        ),
        (
            "a native accept refuses and moves",
            NativeMovesAnyway,
            _MOVES,
            "the native accept of|after native moves",
        ),
        ("a native rollback undoes one token", NativeUndoesOne, _NATIVE, "walk gives node|after a native walk"),
        (
            "a native rollback undoes nothing",
            NativeUndoesNothing,
            _NATIVE,
            "walk gives node|after a native walk",
        ),
        (
            "a native fill adds bits to what memory held",
            NativeAddsBits,
            _NATIVE,
            r"walk gives node \d the tokens",
        ),
        (
            "a native fill leaves words as they were",
            NativeLeavesWords,
            _NATIVE,
            r"walk gives node \d the tokens",
        ),
        (
            "a native fill writes behind its row",
            NativeWritesBehindTheRow,
            _NATIVE,
            "rows that it was not given",
        ),
        (
            "a native fill fails at dead ends",
            NativeFailsAtDeadEnds,
            _NATIVE,
            "in native code: nothing is legal",
        ),
        ("a native table for wider rows", NativeRowsAreTooWide, _NATIVE, "its rows have 3 words, those of the"),
        ("native calls that are not written yet", NoNativeCallsYet, _NATIVE, "raised NotImplementedError"),
        ("native calls behind a stop token", NativeBehindTheEnd, _NATIVE, "behind a stop token are not None"),
        (
            "a fork's native calls move the original",
            NativeCallsOfTheOriginal,
            _NATIVE,
            "walk|the number of rows",
        ),
        ("native moves are no steps", NativeMovesAreForgotten, _MOVES, r"raised MatcherError: rollback"),
        ("native calls of one place", NativeCallsOfAPlace, _MOVES, "native_calls in another place"),
        ("native moves are made twice", NativeMovesAreMadeAgain, _MOVES, "after native moves"),
        (
            "native calls without `native_moved`",
            NativeCallsAlone,
            check_abilities_are_whole,
            "native_calls alone",
        ),
    )
]
