"""`DraftTree`: the draft tokens of a batch as a ragged forest, one tree per request.

Nodes of all requests lie one after the other; request b owns `cu_nodes[b]:cu_nodes[b + 1]`. Links are local
to the request (0 is its root) and -1 stands for none:

    retrieve_next_token[i]    the first child of i, which has the lowest index of its siblings
    retrieve_next_sibling[i]  the next child of i's parent, which has a higher index

A child always has a higher index than its parent. Node 0 is the request's last committed token. Nodes that a
device cut stay as padding (token -1, links -1, nothing links to them), so that launched shapes never change.

The names are those of sglang's EAGLE worker and of xgrammar's `traverse_draft_tree`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class HostTree:
    """A forest in host memory.

    Attributes:
        cu_nodes: int64 `[bs + 1]`, `cu_nodes[0] == 0`, non-decreasing; every request has at least its root.
        draft_tokens: int64 `[num_nodes]`, -1 for padding.
        retrieve_next_token: int64 `[num_nodes]`.
        retrieve_next_sibling: int64 `[num_nodes]`.
    """

    cu_nodes: NDArray[np.int64]
    draft_tokens: NDArray[np.int64]
    retrieve_next_token: NDArray[np.int64]
    retrieve_next_sibling: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DeviceTree:
    """The parts of a forest that a device made; absent ones are on the host or known from the shape.

    Attributes:
        draft_tokens: int64 `[num_nodes]` tensor.
        retrieve_next_token: int64 `[num_nodes]` tensor.
        retrieve_next_sibling: int64 `[num_nodes]` tensor.
    """

    draft_tokens: torch.Tensor | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class SampledProposals:
    """The distributions that `SAMPLED` nodes were drawn from.

    Attributes:
        row_of_node: int64 `[num_nodes]`, the row of `q` that a node was drawn from, -1 for `POINT` nodes.
            Siblings that were drawn from one distribution share its row.
        q: float32 `[rows, columns]` probabilities, on the device of the logits; each row sums to 1.
    """

    row_of_node: NDArray[np.int64]
    q: torch.Tensor


@dataclass(frozen=True, eq=False)
class DraftTree:
    """What a producer proposes for one step: host and device views of one forest, held together.

    Attributes:
        step: the step that it was made for; a tree of another step is refused.
        cu_nodes: int64 `[bs + 1]`, always known on the host (capacity, padding included).
        host: the arrays that the host has; None where a device made the tree.
        device: the arrays that a device has.
        sampled: q of the `SAMPLED` nodes; None if every node is a `POINT`.
        score: float32 `[num_nodes]` expected acceptance of a node given its parent, NaN where unknown; None
            if the producer does not say.
        source: int16 `[num_nodes]` index into `sources`: which producer made the node.
        sources: names of the producers, e.g. `("ngram",)`.
    """

    step: int
    cu_nodes: NDArray[np.int64]
    host: HostTree | None = None
    device: DeviceTree = field(default_factory=DeviceTree)
    sampled: SampledProposals | None = None
    score: NDArray[np.float32] | None = None
    source: NDArray[np.int16] | None = None
    sources: tuple[str, ...] = ()

    @property
    def bs(self) -> int:
        """Number of requests."""
        return len(self.cu_nodes) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all requests, padding included."""
        return int(self.cu_nodes[-1])
