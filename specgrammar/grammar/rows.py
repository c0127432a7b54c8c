"""Where a walk over a tree writes: rows of the bitmask, which node owns each, and what every node is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.trees.tree import HostTree

_REJECTED, _PADDING = int(NodeStatus.REJECTED), int(NodeStatus.PADDING)


class RequestNodes(NamedTuple):
    """One request's tree as plain lists: reading NumPy scalars in a loop costs more than the grammar does."""

    first: int
    """The flat index of its root."""
    tokens: list[int]
    next_token: list[int]
    next_sibling: list[int]

    @classmethod
    def of(cls, tree: HostTree) -> list[RequestNodes]:
        """The trees of all requests in order; the arrays are converted once."""
        tokens = tree.draft_tokens.tolist()
        next_token = tree.retrieve_next_token.tolist()
        next_sibling = tree.retrieve_next_sibling.tolist()
        return [
            cls(begin, tokens[begin:end], next_token[begin:end], next_sibling[begin:end])
            for begin, end in pairwise(tree.cu_nodes.tolist())
        ]


class MaskRows:
    """The rows of one step, in one of two layouts.

    Compact (ours): only live nodes get a row, one after the other as walks reach them. Dense: node i owns row i
    of a buffer that belongs to an engine; rows of other nodes stay as the engine prepared them.

    Attributes:
        bitmask: C-contiguous int32 `[capacity, num_words]`.
        owners: int32 `[capacity]`, the node of each row (compact); -1 for a row that nobody uses.
        status: the `NodeStatus` of every node, int8 `[num_nodes]`.
        num_rows: rows that were handed out (compact).
        statuses: `status` as plain ints, which walks write to.
        words: the bitmask's words by `[row, word]` as plain ints, read in half the time of `bitmask.item`.
        dense: the layout.
        take: called with a node (flat index), returns the number of the row that is filled for it next.
    """

    def __init__(
        self, bitmask: NDArray[np.int32], num_nodes: int, owners: NDArray[np.int32] | None = None
    ) -> None:
        """No rows yet, and `num_nodes` nodes that nobody can accept; dense without `owners`."""
        self.bitmask = bitmask
        self.dense: bool = owners is None
        self.owners: NDArray[np.int32] = np.empty(0, np.int32) if owners is None else owners
        self.status: NDArray[np.int8] = np.zeros(num_nodes, np.int8)  # `PADDING`
        self.num_rows: int = 0
        self.take: Callable[[int], int] = self._take_own if owners is None else self._take_next
        self.statuses: memoryview[int] = self.status.data
        self.words: memoryview[int] = bitmask.data
        self._owners: memoryview[int] = self.owners.data

    def begin(self, tree: HostTree, requests: Iterable[int]) -> None:
        """Until a walk says otherwise the nodes of these requests are rejected, or padding."""
        for request in requests:
            nodes = tree.request_slice(request)
            self.status[nodes] = np.where(tree.draft_tokens[nodes] >= 0, _REJECTED, _PADDING)

    def is_empty(self, row: int) -> bool:
        """Whether a filled row allows nothing."""
        # Comparing bytes is five times faster than `any`; the first word decides in strings, where half of all
        # nodes are.
        return not self.words[row, 0] and self.bitmask[row].tobytes() == bytes(self.bitmask.strides[0])

    def disown(self, row: int) -> None:
        """A row that was handed out belongs to no node after all."""
        if self.dense:
            self.bitmask[row] = -1
        else:
            self._owners[row] = -1

    def drop(self, nodes: RequestNodes) -> None:
        """Forget a request whose walk failed: its nodes are dead; rows of the dense layout as they were."""
        end = nodes.first + len(nodes.tokens)
        self.status[nodes.first : end] = _PADDING
        if self.dense:
            self.bitmask[nodes.first : end] = -1
        else:
            owners = self.owners[: self.num_rows]
            owners[(owners >= nodes.first) & (owners < end)] = -1

    def _take_next(self, node: int) -> int:
        row = self.num_rows
        self._owners[row] = node
        self.num_rows = row + 1
        return row

    def _take_own(self, node: int) -> int:
        return node
