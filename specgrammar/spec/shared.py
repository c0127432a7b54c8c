"""The tokens that requests wrote lately, those of several requests mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.spec.logs import TokenLog
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

    def append(
        self,
        tokens: NDArray[np.int32],
        keys: NDArray[np.uint64],
        counts: Sequence[int],
        previous: Sequence[int],
    ) -> list[int]:
        """Add the next tokens of several requests.

        Args:
            tokens: int32 `[n]`, request by request.
            keys: uint64 `[lengths, n]`, of their contexts, from `NgramPlaces.extend`.
            counts: how many each request wrote, one at least.
            previous: for each request the place of the token before; -1 if that one was not added.

        Returns:
            The place of each request's last token.
        """
        places = self._places.extend_with_contexts(self.log, tokens, keys)
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
        lane, place = np.arange(len(places)), places
        for row in tokens:
            # What follows a token is younger than the token: it is here as long as the place is.
            row[lane] = self._places.tokens_at([self.log], place[None])[0]
            place = self._next[place % self.log.period]
            lane, place = lane[place >= 0], place[place >= 0]
            if not len(lane):
                break
        return tokens
