"""Where a walk over a tree writes: rows of the bitmask, which node owns each, and what every node is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.trees.tree import HostTree

_PADDING, _REJECTED = int(NodeStatus.PADDING), int(NodeStatus.REJECTED)
_LIVE = int(NodeStatus.LIVE)


class RequestNodes(NamedTuple):
    """One request's tree as plain lists: reading NumPy scalars in a loop costs more than the grammar does."""

    first: int
    """The flat index of its root."""
    tokens: list[int]
    next_token: list[int]
    next_sibling: list[int]
    tree: HostTree
    """The batch that it belongs to, for native code, which reads arrays."""

    @classmethod
    def of(cls, tree: HostTree) -> list[RequestNodes]:
        """The trees of all requests in order; the arrays are converted once."""
        tokens = tree.draft_tokens.tolist()
        next_token = tree.retrieve_next_token.tolist()
        next_sibling = tree.retrieve_next_sibling.tolist()
        return [
            cls(begin, tokens[begin:end], next_token[begin:end], next_sibling[begin:end], tree)
            for begin, end in pairwise(tree.cu_nodes.tolist())
        ]


class MaskRows:
    """The rows of one step, in one of two layouts.

    Compact (ours): only live nodes get a row, request after request. Dense: node i owns row
    i of a buffer that belongs to an engine; rows of other nodes stay as the engine prepared them.

    Attributes:
        bitmask: C-contiguous int32 `[capacity, num_words]`.
        statuses: the `NodeStatus` of every node as bytes, which walks write to.
        words: its words by `[row, word]` as plain ints, read in half the time of `bitmask.item`.
        dense: the layout.
        take: called with a node (flat index), returns the number of the row that is filled for it next.
    """

    def __init__(self, bitmask: NDArray[np.int32], num_nodes: int, *, dense: bool = False) -> None:
        """No rows yet, and `num_nodes` nodes that nobody can accept."""
        self.bitmask = bitmask
        self.dense = dense
        self.statuses: bytearray = bytearray(num_nodes)  # `PADDING` is 0
        self.take: Callable[[int], int] = self._take_own if dense else self._take_next
        self._first_row = 0
        self.words: memoryview[int] = bitmask.data
        self._bytes = bitmask.reshape(-1).view(np.uint8).data
        self._empty_row = bytes(bitmask.strides[0])
        self._owners: list[int] = []
        self._parts: list[MaskRows] = [self]

    def part(self, first_row: int) -> MaskRows:
        """Rows from `first_row` on, for another thread: the same memory and statuses, rows of its own.

        Parts are made in the order of their rows, and none runs into the next.
        """
        part = MaskRows(self.bitmask, 0, dense=self.dense)
        part.statuses, part._first_row = self.statuses, first_row
        self._parts.append(part)
        return part

    @property
    def next_row(self) -> int:
        """The row that is handed out next (compact)."""
        return self._first_row + len(self._owners)

    @property
    def segments(self) -> list[slice]:
        """Where the rows are that were handed out: one run of rows per part that has any (compact)."""
        return [slice(p._first_row, p.next_row) for p in self._parts if p._owners]

    @property
    def num_rows(self) -> int:
        """Rows up to the last one handed out; between segments are some that nobody owns."""
        return max(part.next_row for part in self._parts)

    @property
    def status(self) -> NDArray[np.int8]:
        """The `NodeStatus` of every node, int8 `[num_nodes]`: the memory of `statuses`."""
        return np.frombuffer(self.statuses, np.int8)

    def write_owners(self, owners: NDArray[np.int32]) -> None:
        """Write the node that each row is for into int32 `[num_rows]`; -1 for a row that nobody uses."""
        owners.fill(-1)
        for part in self._parts:
            owners[part._first_row : part.next_row] = part._owners
        owners[self.status[owners] != _LIVE] = -1  # -1 looks at the last node: it stays -1 whatever that is

    def begin(self, tree: HostTree) -> None:
        """Start a batch: until a walk says otherwise its nodes are rejected, or padding."""
        self.status[:] = np.where(tree.draft_tokens >= 0, _REJECTED, _PADDING)

    def take_filled(self, first: int, live: list[int]) -> None:
        """Take rows that are filled: node i of a request lies in row i from its base on, for the live ones.

        In the compact layout the base is `next_row`, and live rows close up to it.

        Args:
            first: the flat index of the request's root, which is live.
            live: its live nodes, local numbers, rising.
        """
        if not self.dense and live[-1] >= len(live):
            self._close_up(self.next_row, live)
        self._owners += [first + node for node in live]

    def _close_up(self, base: int, live: list[int]) -> None:
        """Move runs of live rows up, at once what lies next to each other."""
        memory, width = self._bytes, self.bitmask.strides[0]
        num_live = len(live)
        begin = 0
        while begin < num_live:
            gap = live[begin] - begin
            end = begin + 1
            while end < num_live and live[end] - end == gap:
                end += 1
            if gap:  # not by NumPy, which would hand over the interpreter at each copy
                to, source = (base + begin) * width, (base + begin + gap) * width
                size = (end - begin) * width
                memory[to : to + size] = memory[source : source + size]
            begin = end

    def _take_next(self, node: int) -> int:
        row = self._first_row + len(self._owners)
        self._owners.append(node)
        return row

    def _take_own(self, node: int) -> int:
        self._owners.append(node)
        return node

    def is_empty(self, row: int) -> bool:
        """Whether a filled row allows nothing."""
        # Comparing bytes is five times faster than `any`; the first word decides in strings, where half of all
        # nodes are.
        return not self.words[row, 0] and self.bitmask[row].tobytes() == self._empty_row

    def drop(self, nodes: RequestNodes) -> None:
        """Forget a request whose walk failed: its nodes are dead; rows of the dense layout as they were."""
        end = nodes.first + len(nodes.tokens)
        self.statuses[nodes.first : end] = bytes(len(nodes.tokens))
        if self.dense:
            self.bitmask[nodes.first : end] = -1
