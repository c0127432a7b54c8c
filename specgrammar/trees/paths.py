"""Paths through the trees of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub

import numpy as np
from numpy.typing import NDArray

_NUM_NAMED = 5
"""Columns of a record behind its nodes and tokens."""


class Paths:
    """One path for each request, from its root down: nodes, and the token that was chosen behind each.

    Attributes:
        nodes: int64 `[bs, width]`, by their numbers in the request (the root is 0), -1 behind the path; an
            empty path has its root there.
        tokens: int64 `[bs, width]`, -1 for none; anything behind the path.
        lengths: int64 `[bs]`: how many nodes each path has.
        bonus: int64 `[bs]`: the token behind the last one, -1 for none.
        roots: each request's root (flat index).
        width: the most nodes of a request, at least 1.
        num_moved: int64 `[bs]`: how many of the tokens native code has moved the request's grammar over.
        stuck: int64 `[bs]`: the node at which native code could not go on, -1 where its path has ended.
        why: int64 `[bs]`: why it could not.
        records: int64 `[bs, size]`: all of these, a request's side by side, as native code writes them
            (`native/follow.h`).
    """

    def __init__(self, cu_nodes: NDArray[np.int64]) -> None:
        """Empty paths.

        Args:
            cu_nodes: int64 `[bs + 1]`.
        """
        bounds: list[int] = cu_nodes.tolist()
        self.roots: list[int] = bounds[:-1]
        self.width: int = max(map(sub, bounds[1:], bounds), default=1)
        named = 2 * self.width
        self.records: NDArray[np.int64] = np.empty((len(self.roots), named + _NUM_NAMED), np.int64)
        self.records.fill(-1)
        for zero in (0, named, named + 2):  # one by one: in a third of the time
            self.records[:, zero] = 0
        self.nodes: NDArray[np.int64] = self.records[:, : self.width]
        self.tokens: NDArray[np.int64] = self.records[:, self.width : named]
        self.lengths: NDArray[np.int64] = self.records[:, named]
        self.bonus: NDArray[np.int64] = self.records[:, named + 1]
        self.num_moved: NDArray[np.int64] = self.records[:, named + 2]
        self.stuck: NDArray[np.int64] = self.records[:, named + 3]
        self.why: NDArray[np.int64] = self.records[:, named + 4]

    def extend(self, request: int, nodes: Sequence[int], tokens: Sequence[int]) -> None:
        """Go on along some nodes (flat indices), with as many tokens."""
        if not nodes:
            return
        begin, root = int(self.lengths[request]), self.roots[request]
        end = begin + len(nodes)
        self.nodes[request, begin:end] = [node - root for node in nodes]
        self.tokens[request, begin:end] = tokens
        self.lengths[request], self.bonus[request] = end, tokens[-1]

    def moves(self, request: int) -> list[int]:
        """The tokens that native code has moved a request's grammar over."""
        moves: list[int] = self.tokens[request, : int(self.num_moved[request])].tolist()
        return moves

    def choose(self, request: int, token: int) -> None:
        """Set the token behind the last node of a path, which is not empty."""
        self.tokens[request, int(self.lengths[request]) - 1] = self.bonus[request] = token

    def last(self, request: int) -> int:
        """The last node (flat index) of a path, which is not empty."""
        return self.roots[request] + int(self.nodes[request, int(self.lengths[request]) - 1])
