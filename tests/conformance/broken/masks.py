"""Matchers that fill rows wrongly."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.testing.checks.mask import (
    check_a_dead_end_is_raised,
    check_bitmasks_not_to_contract_are_refused,
    check_bits_are_what_accept_takes,
    check_filling_changes_nothing,
    check_nothing_is_legal_behind_the_end,
    check_rows_outside_the_bitmask_are_refused,
    check_the_whole_row_and_no_other_is_written,
)
from specgrammar.testing.reference import ReferenceMatcher
from tests.conformance.broken.rejected import rejected


class Rows(ReferenceMatcher):
    """Takes the row of the reference and writes it in its own way, unless there is none."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        right = np.zeros((len(bitmask), self._vocabulary.num_words), np.int32)
        try:
            super().fill_bitmask(right, row)
        except DeadEndError:
            self.dead_end(bitmask, row)
        else:
            self.write(bitmask, row, right[row])

    def write(self, bitmask: Any, row: int, words: Any) -> None:
        bitmask[row] = words

    def dead_end(self, bitmask: Any, row: int) -> None:
        bitmask[row] = 0
        raise DeadEndError("nothing is legal")


class RowZero(ReferenceMatcher):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        super().fill_bitmask(bitmask, 0 * row)


class WritesTheNextRowToo(Rows):
    """A copy of a fixed size that is longer than the row."""

    def write(self, bitmask: Any, row: int, words: Any) -> None:
        bitmask[row : row + 2] = words


class AddsBits(Rows):
    def write(self, bitmask: Any, row: int, words: Any) -> None:
        bitmask[row] |= words


class ClearsBits(Rows):
    def write(self, bitmask: Any, row: int, words: Any) -> None:
        bitmask[row] &= words


class ForgetsTheLastWord(Rows):
    def write(self, bitmask: Any, row: int, words: Any) -> None:
        num_words = self._vocabulary.vocab_size // 32
        bitmask[row, :num_words] = words[:num_words]


class SetsSpareBits(Rows):
    def write(self, bitmask: Any, row: int, words: Any) -> None:
        num_legal = int(np.unpackbits(words.view(np.uint8)).sum())
        bitmask[row] = -1 if num_legal == self._vocabulary.vocab_size else words


class JumpsAhead(ReferenceMatcher):
    """Where one token is forced, it is taken at once."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        super().fill_bitmask(bitmask, row)
        legal = np.flatnonzero(np.unpackbits(bitmask[row].view(np.uint8), bitorder="little"))
        if len(legal) == 1:
            self.accept(int(legal[0]))


class LosesItsCopy(ReferenceMatcher):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        super().fill_bitmask(np.array(bitmask, order="C"), row)
        if bitmask.flags.c_contiguous:
            super().fill_bitmask(bitmask, row)


class IgnoresStrides(Rows):
    """Writes at the address where the row would be if the rows lay next to each other."""

    def write(self, bitmask: Any, row: int, words: Any) -> None:
        base = bitmask
        while base.base is not None:
            base = base.base
        if base.ndim == 2 and base.dtype == np.int32 and base.flags.c_contiguous and base.flags.writeable:
            base.reshape(-1)[row * len(words) : (row + 1) * len(words)] = words
        else:
            ReferenceMatcher.fill_bitmask(self, bitmask, row)


class TakesAnyType(Rows):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        if bitmask.dtype == np.int32:
            ReferenceMatcher.fill_bitmask(self, bitmask, row)
        else:
            super().fill_bitmask(bitmask, row)


class RefusesWithValueError(ReferenceMatcher):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        try:
            super().fill_bitmask(bitmask, row)
        except MatcherError as error:
            raise ValueError(str(error)) from error


class RowsWrapAround(ReferenceMatcher):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        super().fill_bitmask(bitmask, row + len(bitmask) if row < 0 else row)


class DeadEndIsSilent(Rows):
    def dead_end(self, bitmask: Any, row: int) -> None:
        bitmask[row] = 0


class DeadEndFailsOpen(Rows):
    def dead_end(self, bitmask: Any, row: int) -> None:
        bitmask[row] = -1


class DeadEndLeavesTheRow(Rows):
    def dead_end(self, bitmask: Any, row: int) -> None:
        del bitmask, row
        raise DeadEndError("nothing is legal")


class DeadEndPoisons(Rows):
    """As llguidance does: what failed once fails for ever."""

    is_poisoned = False

    def dead_end(self, bitmask: Any, row: int) -> None:
        self.is_poisoned = not self._finished
        super().dead_end(bitmask, row)

    def write(self, bitmask: Any, row: int, words: Any) -> None:
        if self.is_poisoned:
            raise MatcherError("the parser is in a state of error")
        super().write(bitmask, row, words)


class FreeBehindTheEnd(Rows):
    def dead_end(self, bitmask: Any, row: int) -> None:
        if not self._finished:
            super().dead_end(bitmask, row)
        bitmask[row] = -1


class ShortTokensOnly(Rows):
    """Only tokens of one byte have bits."""

    def write(self, bitmask: Any, row: int, words: Any) -> None:
        flags = np.unpackbits(words.view(np.uint8), bitorder="little")
        for token, text in enumerate(self._vocabulary.tokens):
            flags[token] &= len(text) <= 1
        bitmask[row] = np.packbits(flags, bitorder="little").view("<i4")


class FirstByteDecides(ReferenceMatcher):
    """A token has its bit if its first byte is legal."""

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        with contextlib.suppress(DeadEndError):
            super().fill_bitmask(bitmask, row)
        if self._finished:
            raise DeadEndError("nothing is legal")
        for token, text in enumerate(self._vocabulary.tokens):
            legal = text and self._parser.step(self._history[-1], text[0]) is not None
            if legal and token not in self._vocabulary.special_ids:
                bitmask[row, token // 32] |= 1 << token % 32
        if not bitmask[row].any():
            raise DeadEndError("nothing is legal")


_BITS = check_bits_are_what_accept_takes
_ROW = check_the_whole_row_and_no_other_is_written
_CONTRACT = check_bitmasks_not_to_contract_are_refused
_DEAD_END = check_a_dead_end_is_raised

BROKEN_MASKS = [
    rejected(fault, matcher, check, finds)
    for fault, matcher, check, finds in (
        ("the row's number is ignored", RowZero, _ROW, "row 1, which held 1431655765"),
        ("the next row is written, too", WritesTheNextRowToo, _ROW, "wrote to another row"),
        ("bits are added to what memory held", AddsBits, _ROW, r"row \d, which held -1,.* is \[-1\]"),
        ("bits are cleared in what memory held", ClearsBits, _ROW, r"row 0, which held 0.* is \[0\]"),
        ("the last word is not written", ForgetsTheLastWord, _ROW, "row 0, which held 0"),
        ("bits behind the vocabulary are set", SetsSpareBits, _ROW, r"all 31 ids.* is \[-1\]"),
        ("a fill moves over forced tokens", JumpsAhead, check_filling_changes_nothing, "filled twice"),
        ("a copy is filled, the bitmask is not", LosesItsCopy, _CONTRACT, "raised nothing"),
        ("strides are ignored", IgnoresStrides, _CONTRACT, "raised nothing"),
        ("a bitmask of any type is filled", TakesAnyType, _CONTRACT, "of (float32|int64) raised nothing"),
        ("a bitmask is refused by a ValueError", RefusesWithValueError, _CONTRACT, "raised ValueError"),
        (
            "row -1 is the last one",
            RowsWrapAround,
            check_rows_outside_the_bitmask_are_refused,
            "row -1 of 2 raised nothing",
        ),
        ("a dead end is not raised", DeadEndIsSilent, _DEAD_END, "raised nothing; expected DeadEndError"),
        ("a dead end fails open", DeadEndFailsOpen, _DEAD_END, "raised nothing; expected DeadEndError"),
        (
            "a dead end leaves the row as it was",
            DeadEndLeavesTheRow,
            _DEAD_END,
            "raised DeadEndError and left bits set",
        ),
        ("a dead end is for ever", DeadEndPoisons, _DEAD_END, "state of error"),
        (
            "rows behind the end are free",
            FreeBehindTheEnd,
            check_nothing_is_legal_behind_the_end,
            "behind a stop token raised nothing",
        ),
        (
            "long tokens have no bits",
            ShortTokensOnly,
            _BITS,
            r"accept\('ab' \(3\)\) is taken, but it has no bit",
        ),
        ("a token's first byte decides", FirstByteDecides, _BITS, "is refused, but its bit (is|was) set"),
    )
]
