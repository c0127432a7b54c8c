"""How often drafts of a kind are taken where all above them are: counted while decoding."""

from __future__ import annotations

from specgrammar.spec.merged.trie import DraftTrie, Origin

_FIRST_GUESS = 0.6
_GUESS_WEIGHT = 4.0
"""The guess counts as much as so many drafts."""
_MEMORY = 512.0
"""About how many drafts of a kind are remembered, so that a rate follows what the requests are like."""


class Acceptance:
    """The rate of every kind of draft, and what it was learnt from."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._taken: dict[Origin, float] = {}
        self._seen: dict[Origin, float] = {}

    def rate(self, origin: Origin) -> float:
        """The probability that a draft is taken whose parent is."""
        seen = self._seen.get(origin, 0.0)
        return (self._taken.get(origin, 0.0) + _GUESS_WEIGHT * _FIRST_GUESS) / (seen + _GUESS_WEIGHT)

    def learn(self, verified: DraftTrie, committed: tuple[int, ...]) -> None:
        """Count the children of every node that was taken, given what the step committed."""
        node: int | None = 0
        for token in committed:
            if node is None:
                return
            for child in verified.children(node):
                self._count(verified.origins[child], verified.tokens[child] == token)
            node = verified.child(node, token)

    def _count(self, origin: Origin, is_taken: bool) -> None:
        seen = self._seen.get(origin, 0.0)
        fade = 1.0 if seen < _MEMORY else 1.0 - 1.0 / _MEMORY
        self._seen[origin] = seen * fade + 1.0
        self._taken[origin] = self._taken.get(origin, 0.0) * fade + is_taken
