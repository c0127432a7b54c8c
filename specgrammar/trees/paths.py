"""Paths through the trees of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Paths:
    """One path for each request, from its root down: nodes, and the token that was chosen behind each.

    A path lies where its request's nodes do, from `cu_nodes[request]` on: it is not longer than they are many.

    Attributes:
        nodes: int64 `[num_nodes]`, flat.
        tokens: int64 `[num_nodes]`, -1 for none. At an empty path's place are its root and no token.
        lengths: int64 `[bs]`: how many nodes each path has.
    """

    def __init__(self, cu_nodes: NDArray[np.int64]) -> None:
        """Empty paths.

        Args:
            cu_nodes: int64 `[bs + 1]`.
        """
        self._roots = cu_nodes[:-1]
        self.nodes: NDArray[np.int64] = np.empty(int(cu_nodes[-1]), np.int64)
        self.tokens: NDArray[np.int64] = np.empty(int(cu_nodes[-1]), np.int64)
        self.lengths: NDArray[np.int64] = np.zeros(len(self._roots), np.int64)
        self.nodes[self._roots] = self._roots
        self.tokens[self._roots] = -1

    def extend(self, request: int, nodes: Sequence[int], tokens: Sequence[int]) -> None:
        """Go on along some nodes, with as many tokens."""
        begin = int(self._roots[request] + self.lengths[request])
        self.nodes[begin : begin + len(nodes)] = nodes
        self.tokens[begin : begin + len(tokens)] = tokens
        self.lengths[request] += len(nodes)

    def last(self, request: int) -> int:
        """Where the last node of a path lies; the path is not empty."""
        return int(self._roots[request] + self.lengths[request]) - 1

    def rows(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where paths of some lengths lie, int64 `[bs, longest or 1]`, and which of these places are theirs."""
        columns = np.arange(lengths.max(initial=1))
        places = np.minimum(self._roots[:, None] + columns, len(self.nodes) - 1)
        return places, columns < lengths[:, None]
