"""Where a walk over a tree writes: rows of the bitmask, which node owns each, and what every node is."""

from __future__ import annotations

from collections.abc import Iterator
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
    def of(cls, tree: HostTree) -> Iterator[RequestNodes]:
        """The trees of all requests in order; the arrays are converted once."""
        tokens = tree.draft_tokens.tolist()
        next_token = tree.retrieve_next_token.tolist()
        next_sibling = tree.retrieve_next_sibling.tolist()
        for begin, end in pairwise(tree.cu_nodes.tolist()):
            yield cls(begin, tokens[begin:end], next_token[begin:end], next_sibling[begin:end], tree)


class MaskRows:
    """The rows of one step, in one of two layouts.

    Compact (ours): only live nodes get a row, in the order in which they are walked. Dense: node i owns row
    i of a buffer that belongs to an engine; rows of other nodes stay as the engine prepared them.

    Attributes:
        bitmask: C-contiguous int32 `[capacity, num_words]`.
        statuses: the `NodeStatus` of every node as a plain list, which walks write to.
        dense: the layout.
        take: called with a node (flat index), returns the number of the row that is filled for it next.
    """

    def __init__(self, bitmask: NDArray[np.int32], num_nodes: int, *, dense: bool = False) -> None:
        """No rows yet, and `num_nodes` nodes that nobody can accept."""
        self.bitmask = bitmask
        self.dense = dense
        self._first_words = range(min(4, bitmask.shape[1]))
        self.statuses = [_PADDING] * num_nodes
        self._owners: list[int] = []
        self.take = self._take_own if dense else self._take_next

    @property
    def num_rows(self) -> int:
        """Rows handed out; in the compact layout they are the first ones."""
        return len(self._owners)

    @property
    def status(self) -> NDArray[np.int8]:
        """The `NodeStatus` of every node, int8 `[num_nodes]`."""
        return np.array(self.statuses, np.int8)

    @property
    def owners(self) -> NDArray[np.int32]:
        """The node that each row is for, int32 `[num_rows]`; -1 for a row that nobody uses."""
        owners = np.array(self._owners, np.int32)
        live = self.status[owners] == _LIVE
        return np.where(live, owners, np.int32(-1)).astype(np.int32)

    @property
    def row_of_node(self) -> NDArray[np.int32]:
        """The row of each live node, int32 `[num_nodes]`; -1 for all others."""
        owners = self.owners
        used = np.flatnonzero(owners >= 0)
        row_of_node = np.full(len(self.statuses), -1, np.int32)
        row_of_node[owners[used]] = owners[used] if self.dense else used
        return row_of_node

    def begin(self, nodes: RequestNodes) -> None:
        """Start a request: until a walk says otherwise its nodes are rejected, or padding."""
        self.statuses[nodes.first : nodes.first + len(nodes.tokens)] = [
            _REJECTED if token >= 0 else _PADDING for token in nodes.tokens
        ]

    def _take_next(self, node: int) -> int:
        owners = self._owners
        owners.append(node)
        return len(owners) - 1

    def _take_own(self, node: int) -> int:
        self._owners.append(node)
        return node

    def is_empty(self, row: int) -> bool:
        """Whether a filled row allows nothing.

        Byte-level vocabularies have the printable characters in their first words, so that one of these is not
        zero in nearly every row; looking at all words costs as much as a small fill.
        """
        item = self.bitmask.item
        for word in self._first_words:
            if item(row, word):
                return False
        return not self.bitmask[row].any()

    def drop(self, nodes: RequestNodes) -> None:
        """Forget a request whose walk failed: its nodes are dead; rows of the dense layout as they were."""
        end = nodes.first + len(nodes.tokens)
        self.statuses[nodes.first : end] = [_PADDING] * len(nodes.tokens)
        if self.dense:
            self.bitmask[nodes.first : end] = -1
