"""Where n-grams occurred in one request's history, for prompt lookup.

A place is the position of the token behind an occurrence. For every length from `min_match` to `max_match`, an
n-gram knows its `max_places` most recent places, so that adding a token and looking one up cost the same
however much was seen.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_TOKEN_BYTES = array("i").itemsize


class NgramIndex:
    """The most recent places of every n-gram, under the n-gram's bytes (native int32 token ids)."""

    def __init__(self, min_match: int, max_match: int, max_places: int) -> None:
        """An empty index of n-grams of `min_match` to `max_match` tokens."""
        self.min_match = min_match
        self.max_match = max_match
        self._max_places = max_places
        self._places: dict[bytes, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Number of n-grams that have a place."""
        return len(self._places)

    def places(self, context: bytes, length: int) -> tuple[int, ...]:
        """Where the last `length` tokens of a context occurred, the most recent place first."""
        size = length * _TOKEN_BYTES
        return self._places.get(context[-size:], ()) if size <= len(context) else ()

    def add(self, context: bytes, place: int) -> None:
        """Note that `place`, higher than all before, follows `context` (at most `max_match` tokens)."""
        known = self._places
        for size in self._sizes(context):
            ngram = context[-size:]
            known[ngram] = (place, *known.get(ngram, ())[: self._max_places - 1])

    def _sizes(self, context: bytes) -> range:
        return range(self.min_match * _TOKEN_BYTES, len(context) + 1, _TOKEN_BYTES)


class History:
    """One request's tokens, prompt and output, and the places of their n-grams."""

    def __init__(self, index: NgramIndex) -> None:
        """An empty history over an empty index of its own."""
        self.index = index
        self._tokens = array("i")

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Add a token; what stood before it now has a place where it went on."""
        self.index.add(self.context(), len(self._tokens))
        self._tokens.append(token)

    def context(self) -> bytes:
        """The last `max_match` tokens, or all if there are fewer."""
        return self._tokens[-self.index.max_match :].tobytes()

    def ends_with(self, tokens: Iterable[int]) -> bool:
        """Whether `tokens` are its last ones."""
        tail = array("i", tokens)
        return self._tokens[len(self._tokens) - len(tail) :] == tail

    def continuation(self, place: int, length: int) -> list[int]:
        """`length` tokens from `place` on.

        A copy that reaches the end goes on with what it has copied, so that a run or a cycle continues.
        """
        tokens = self._tokens[place : place + length].tolist()
        if len(tokens) < length:
            tokens = (tokens * -(-length // len(tokens)))[:length]
        return tokens
