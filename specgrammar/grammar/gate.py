"""The gate: a grammar that begins behind a marker, such as the token that ends a reasoning block.

Until the marker is complete the request is unrestricted and its tokens are not the grammar's. The state is one
int, so a walk over a tree keeps it per path and needs no undo.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.checks import refused, token_ids


class Gate:
    """Recognises a marker of one or several token ids in a stream.

    The matching is Knuth-Morris-Pratt: overlapping and broken-off occurrences are followed exactly, and a
    step costs amortised O(1). States count how much of the marker is matched; `open_state` is all of it and
    is never left.
    """

    def __init__(self, marker: Sequence[int]) -> None:
        """Build the automaton; raises ConfigError for an empty marker or negative ids."""
        self.marker = token_ids("gate: marker", marker)
        if not self.marker:
            raise refused("gate: marker", marker, "at least one token id")
        self.open_state = len(self.marker)
        self._fallback = _borders(self.marker)

    def step(self, state: int, token: int) -> int:
        """The state behind `token`; `state` itself is not changed (snapshot and restore are assignment)."""
        if state == self.open_state:
            return state
        while state and self.marker[state] != token:
            state = self._fallback[state]
        return state + 1 if self.marker[state] == token else 0


def _borders(marker: tuple[int, ...]) -> list[int]:
    """For each matched length, the length of the longest proper prefix of it that is also its suffix."""
    borders = [0, 0]
    border = 0
    for token in marker[1:]:
        while border and marker[border] != token:
            border = borders[border]
        border += marker[border] == token
        borders.append(border)
    return borders
