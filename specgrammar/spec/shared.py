"""The tokens that requests wrote lately, those of several requests mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.spec.logs import Lanes, TokenLog
from specgrammar.spec.places import NgramPlaces


class SharedCorpus:
    """The last `capacity` tokens that requests wrote, and for each what its request wrote next.

    A new token takes the memory of the oldest one, which is forgotten with all that led to it.
    """

    def __init__(self, places: NgramPlaces, capacity: int) -> None:
        """An empty corpus, in a log of `places`."""
        self._places = places
        self.log: TokenLog = places.new_log(capacity)
        self._next = np.full(self.log.size, -1, dtype=np.int64)

    def __len__(self) -> int:
        """Number of tokens held."""
        return len(self.log)

    def connect(self, places: NDArray[np.int64], counts: Sequence[int], previous: Sequence[int]) -> list[int]:
        """Note for tokens that were added to the log who wrote them.

        Args:
            places: int64 `[n]`, request by request, ascending.
            counts: how many each request wrote, one at least.
            previous: for each request the place of the token before; -1 if that one was not added.

        Returns:
            The place of each request's last token.
        """
        if len(self._next) < self.log.size:
            self._next = np.pad(self._next, (0, self.log.size - len(self._next)), constant_values=-1)
        ends = np.cumsum(counts)
        before = places - 1
        before[ends - np.array(counts)] = previous
        oldest = self.log.num_tokens - len(self.log)
        self._next[places[places >= oldest] % self.log.period] = -1
        held = before >= oldest
        self._next[before[held] % self.log.period] = places[held]
        last: list[int] = places[ends - 1].tolist()
        return last

    def continuations(self, places: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
        """What the request that wrote each place wrote from there on: int32 `[depth, n]`, filled with -1."""
        tokens = np.full((depth, len(places)), -1, dtype=np.int32)
        log, lane, place = Lanes.of([self.log]), np.arange(len(places)), places
        for row in tokens:
            # What follows a token is younger than the token: it is here as long as the place is.
            row[lane] = self._places.tokens_at(log, place)
            place = self._next[place % self.log.period]
            goes_on = place >= 0
            lane, place = lane[goes_on], place[goes_on]
            if not len(lane):
                break
        return tokens
