"""Where a walk over a tree writes: rows of the bitmask, which node owns which, and what each node is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.trees.tree import HostTree


class RequestNodes(NamedTuple):
    """One request's tree as plain lists: reading NumPy scalars in a loop costs more than the grammar does."""

    first: int
    """The flat index of its root."""
    tokens: list[int]
    next_token: list[int]
    next_sibling: list[int]

    @classmethod
    def of(cls, tree: HostTree) -> Iterator[RequestNodes]:
        """The trees of all requests in order; the arrays are converted once."""
        tokens = tree.draft_tokens.tolist()
        next_token = tree.retrieve_next_token.tolist()
        next_sibling = tree.retrieve_next_sibling.tolist()
        bounds = tree.cu_nodes.tolist()
        for begin, end in pairwise(bounds):
            yield cls(begin, tokens[begin:end], next_token[begin:end], next_sibling[begin:end])


@dataclass
class MaskRows:
    """The rows of one step, in one of two layouts.

    Compact (ours): only live nodes get a row, in the order in which they are walked. Dense: node i owns row
    i of a buffer that belongs to an engine; rows of other nodes stay as the engine prepared them.

    Attributes:
        bitmask: C-contiguous int32 `[capacity, num_words]`.
        num_nodes: nodes of the whole batch.
        dense: the layout.
        status: int8 `[num_nodes]` of `NodeStatus`; fresh ones are PADDING, which nobody can accept.
        row_of_node: int32 `[num_nodes]`, -1 where a node owns no row.
        num_rows: rows written; in the compact layout they are the first ones.
    """

    bitmask: NDArray[np.int32]
    num_nodes: int
    dense: bool = False
    num_rows: int = 0
    status: NDArray[np.int8] = field(init=False)
    row_of_node: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.status = np.zeros(self.num_nodes, np.int8)
        self.row_of_node = np.full(self.num_nodes, -1, np.int32)

    def put(self, nodes: RequestNodes, status: Sequence[int], live: Sequence[int]) -> None:
        """Take over what a walk found: `live[k]` (local) owns the k-th row behind `num_rows`, or its own."""
        self.status[nodes.first : nodes.first + len(status)] = status
        owners = np.asarray(live, np.int32) + nodes.first
        self.row_of_node[owners] = owners if self.dense else np.arange(self.num_rows, self.num_rows + len(live))
        self.num_rows += len(live)

    def put_free(self, nodes: RequestNodes, vocab_size: int) -> None:
        """A request without a grammar: every node whose id is a token is free, and none needs a row."""
        tokens = np.asarray(nodes.tokens)
        status = np.where(tokens < vocab_size, NodeStatus.FREE, NodeStatus.REJECTED)
        status[tokens < 0] = NodeStatus.PADDING
        self.status[nodes.first : nodes.first + len(tokens)] = status

    def reset(self, nodes: RequestNodes) -> None:
        """Forget a request whose walk failed: its nodes stay dead, its dense rows unrestricted as before."""
        if self.dense:
            self.bitmask[nodes.first : nodes.first + len(nodes.tokens)] = -1
