"""Paths through the trees of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.trees.tree import HostTree

_LENGTH, _NUM_ACCEPTED, _BONUS, _NUM_MOVED, _STUCK, _WHY = range(_NUM_NAMED := 6)
"""Columns of a record behind its nodes and tokens."""


class Paths:
    """One path for each request, from its root down: nodes, and the token that was chosen behind each.

    It says nothing about a request until `begin`, or native code, has begun the request's path.

    Attributes:
        nodes: int64 `[bs, width]`, by their numbers in the request (the root is 0), -1 behind the path; an
            empty path has its root there.
        tokens: int64 `[bs, width]`, -1 for none; anything behind the path.
        lengths: int64 `[bs]`: how many nodes each path has.
        num_accepted: int64 `[bs]`: how many of them are drafts, all but the root.
        bonus: int64 `[bs]`: the token behind the last one, -1 for none.
        roots: each request's root (flat index), and behind the last the number of nodes.
        num_moved: int64 `[bs]`: how many of the tokens native code has moved the request's grammar over.
        stuck: int64 `[bs]`: the node at which native code could not go on, -1 where its path has ended.
        why: int64 `[bs]`: why it could not.
        records: int64 `[bs, size]`: all of these, a request's side by side, as native code writes them
            (`native/follow.h`).
    """

    def __init__(self, tree: HostTree) -> None:
        """Memory for the paths through a valid tree."""
        self.roots: memoryview[int] = tree.cu_nodes.data
        width = tree.width
        named = 2 * width
        self.records: NDArray[np.int64] = np.empty((tree.bs, named + _NUM_NAMED), np.int64)
        self._words: memoryview[int] = self.records.data  # single ones are read faster than of arrays
        self._width = width
        self.nodes: NDArray[np.int64] = self.records[:, :width]
        self.tokens: NDArray[np.int64] = self.records[:, width:named]
        self.lengths: NDArray[np.int64] = self.records[:, named + _LENGTH]
        self.num_accepted: NDArray[np.int64] = self.records[:, named + _NUM_ACCEPTED]
        self.bonus: NDArray[np.int64] = self.records[:, named + _BONUS]
        self.num_moved: NDArray[np.int64] = self.records[:, named + _NUM_MOVED]
        self.stuck: NDArray[np.int64] = self.records[:, named + _STUCK]
        self.why: NDArray[np.int64] = self.records[:, named + _WHY]

    def begin(self, requests: Sequence[int]) -> None:
        """Empty paths for some requests."""
        if not requests:
            return
        self.records[requests] = -1
        for zeros in (self.nodes[:, 0], self.lengths, self.num_accepted, self.num_moved):
            zeros[requests] = 0

    def extend(self, request: int, nodes: Sequence[int], tokens: Sequence[int]) -> None:
        """Go on along some nodes (flat indices), with as many tokens."""
        if not nodes:
            return
        begin, root = int(self.lengths[request]), self.roots[request]
        end = begin + len(nodes)
        self.nodes[request, begin:end] = [node - root for node in nodes]
        self.tokens[request, begin:end] = tokens
        self.lengths[request], self.num_accepted[request], self.bonus[request] = end, end - 1, tokens[-1]

    def moves(self, request: int) -> list[int]:
        """The tokens that native code has moved a request's grammar over."""
        moves: list[int] = self.tokens[request, : int(self.num_moved[request])].tolist()
        return moves

    def choose(self, request: int, token: int) -> None:
        """Set the token behind the last node of a path, which is not empty."""
        self._words[request, self._width + self._length(request) - 1] = token
        self._words[request, 2 * self._width + _BONUS] = token

    def last(self, request: int) -> int:
        """The last node (flat index) of a path, which is not empty."""
        return self.roots[request] + self._words[request, self._length(request) - 1]

    def _length(self, request: int) -> int:
        return self._words[request, 2 * self._width + _LENGTH]
