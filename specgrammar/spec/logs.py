"""Logs of tokens in shared arrays, and the arithmetic of where in them a place or a bucket lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MIXER = np.uint64(0xD6E8FEB86659FD93)


@dataclass(eq=False, slots=True)
class TokenLog:
    """Tokens in the order in which they came; `NgramPlaces` makes and changes it.

    Attributes:
        limit: most tokens held, the oldest go first; None: all are kept.
        start: its first slot in the arrays.
        size: how many slots it has, a power of two.
        num_tokens: tokens added so far, which is the next place.
    """

    limit: int | None
    start: int
    size: int
    num_tokens: int = 0

    def __len__(self) -> int:
        """Number of tokens held."""
        return self.num_tokens if self.limit is None else min(self.num_tokens, self.limit)

    @property
    def period(self) -> int:
        """Places that are this far apart share a slot."""
        return self.size if self.limit is None else min(self.size, self.limit)


@dataclass(slots=True)
class Lanes:
    """The logs that a vector of work is on, one a lane: int64 `[n]` each, `shift` uint64.

    Attributes:
        start: first slot.
        period: places that are this far apart share a slot.
        oldest: the oldest place held.
        end: the next place.
        shift: from a 64-bit hash to a bucket.
    """

    start: NDArray[np.int64]
    period: NDArray[np.int64]
    oldest: NDArray[np.int64]
    end: NDArray[np.int64]
    shift: NDArray[np.uint64]

    @classmethod
    def of(cls, logs: Sequence[TokenLog]) -> Lanes:
        """A lane per log."""
        rows = [(log.start, log.period, log.num_tokens - len(log), log.num_tokens, log.size) for log in logs]
        start, period, oldest, end, size = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        return cls(start, period, oldest, end, 64 - np.log2(size).astype(np.uint64))

    @classmethod
    def of_one(cls, log: TokenLog, num_lanes: int) -> Lanes:
        """Lanes of the same log."""
        return cls.of([log])[np.zeros(num_lanes, dtype=np.int64)]

    def __getitem__(self, index: NDArray[Any]) -> Lanes:
        """The lanes at indices or where a mask is set."""
        return Lanes(
            self.start[index], self.period[index], self.oldest[index], self.end[index], self.shift[index]
        )

    def with_more(self, more: Lanes) -> Lanes:
        """These lanes and then others."""
        return Lanes(
            np.concatenate((self.start, more.start)),
            np.concatenate((self.period, more.period)),
            np.concatenate((self.oldest, more.oldest)),
            np.concatenate((self.end, more.end)),
            np.concatenate((self.shift, more.shift)),
        )

    def in_row(self, offset: NDArray[np.int64]) -> Lanes:
        """The same lanes in arrays of several rows, whose row begins at an offset of its own for each lane."""
        return Lanes(self.start + offset, self.period, self.oldest, self.end, self.shift)

    def slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the place of each lane lies."""
        slots: NDArray[np.int64] = self.start + places % self.period
        return slots

    def buckets(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where the head for the key of each lane lies."""
        mixed = (keys ^ (keys >> np.uint64(32))) * _MIXER
        return self.start + (mixed >> self.shift).astype(np.int64)
