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

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.trees.chain import chain_links
from specgrammar.trees.links import links_from_parents
from specgrammar.trees.ragged import dense_slots, dense_width, doublings, flat_links, node_starts

if TYPE_CHECKING:
    import torch

    from specgrammar.protocols.staging import Launched


@dataclass(frozen=True, eq=False)
class HostTree:
    """A forest in host memory.

    The constructors do not look for everything that can be wrong with a tree; `validate.validate_tree` does.

    Attributes:
        cu_nodes: int64 `[bs + 1]`, `cu_nodes[0] == 0`, non-decreasing; every request has at least its root.
        draft_tokens: int64 `[num_nodes]`, -1 for padding.
        retrieve_next_token: int64 `[num_nodes]`.
        retrieve_next_sibling: int64 `[num_nodes]`.
        is_valid: `validate_tree` has found nothing wrong with it. The arrays are not changed once that is so.
    """

    cu_nodes: NDArray[np.int64]
    draft_tokens: NDArray[np.int64]
    retrieve_next_token: NDArray[np.int64]
    retrieve_next_sibling: NDArray[np.int64]
    is_valid: bool = field(default=False, init=False, repr=False)

    @classmethod
    def from_parents(
        cls, cu_nodes: NDArray[np.int64], draft_tokens: NDArray[np.int64], parents: NDArray[np.int64]
    ) -> HostTree:
        """Build from each node's parent.

        Args:
            cu_nodes: int64 `[bs + 1]`.
            draft_tokens: int64 `[num_nodes]`, -1 for padding.
            parents: int64 `[num_nodes]`, local to the request, -1 for roots and padding.

        Raises:
            TreeError: a parent does not come before its child, or the lengths do not fit.
        """
        return cls(cu_nodes, draft_tokens, *links_from_parents(cu_nodes, parents))

    @classmethod
    def from_dense(
        cls,
        draft_tokens: NDArray[np.int64],
        next_token: NDArray[np.int64],
        next_sibling: NDArray[np.int64],
        num_nodes: NDArray[np.int64] | None = None,
    ) -> HostTree:
        """Build from arrays of shape `[bs, N]`.

        Args:
            draft_tokens: int64 `[bs, N]`, -1 for padding.
            next_token: int64 `[bs, N]`, first children.
            next_sibling: int64 `[bs, N]`, next siblings.
            num_nodes: int64 `[bs]`, keep this many nodes of each request and drop what is behind them. None:
                keep all N, padding as nodes of the tree (contiguous arrays are then used as they are).

        Raises:
            TreeError: the shapes differ or are not two-dimensional, or `num_nodes` does not fit.
        """
        arrays = (draft_tokens, next_token, next_sibling)
        shapes = [array.shape for array in arrays]
        if draft_tokens.ndim != 2 or len(set(shapes)) != 1:
            raise TreeError(f"dense tokens and links have shapes {shapes}; expected [bs, N] for all three")
        bs, width = draft_tokens.shape
        if num_nodes is None:
            cu_nodes = np.arange(bs + 1, dtype=np.int64) * width
            return cls(cu_nodes, *(np.ascontiguousarray(array).reshape(-1) for array in arrays))
        if num_nodes.shape != (bs,) or ((num_nodes < 1) | (num_nodes > width)).any():
            raise TreeError(
                f"num_nodes is {num_nodes.tolist()} for dense arrays [{bs}, {width}]; "
                "expected one number per request, from 1 to N"
            )
        keep = np.arange(width) < num_nodes[:, None]
        cu_nodes = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(num_nodes, dtype=np.int64)))
        return cls(cu_nodes, *(array[keep] for array in arrays))

    @classmethod
    def from_chains(cls, chains: Sequence[Sequence[int]]) -> HostTree:
        """Build from one token list per request, its root first; a root alone has no draft.

        Raises:
            TreeError: a list is empty.
        """
        lengths = np.fromiter(map(len, chains), dtype=np.int64, count=len(chains))
        if (lengths == 0).any():
            raise TreeError(f"request {int(lengths.argmin())} has no tokens; a chain starts with its root")
        cu_nodes = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
        draft_tokens = np.fromiter(chain.from_iterable(chains), dtype=np.int64, count=int(cu_nodes[-1]))
        return cls(cu_nodes, draft_tokens, *chain_links(cu_nodes))

    @classmethod
    def roots(cls, tokens: Sequence[int]) -> HostTree:
        """Build one tree per token that has its root alone."""
        return cls.from_chains([(token,) for token in tokens])

    @property
    def bs(self) -> int:
        """Number of requests."""
        return len(self.cu_nodes) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all requests, padding included."""
        return len(self.draft_tokens)

    @cached_property
    def width(self) -> int:
        """The most nodes of a request, at least 1."""
        return dense_width(self.cu_nodes, None)

    def request_slice(self, request: int) -> slice:
        """Where the nodes of a request lie in the flat arrays."""
        return slice(int(self.cu_nodes[request]), int(self.cu_nodes[request + 1]))

    def to_dense(
        self, num_nodes: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Tokens, first children and next siblings as int64 `[bs, N]`, filled with -1.

        Args:
            num_nodes: N; None for the size of the largest tree (1 for an empty batch).

        Raises:
            TreeError: a tree has more than `num_nodes` nodes.
        """
        width = dense_width(self.cu_nodes, num_nodes)
        slots = dense_slots(self.cu_nodes, width)
        dense = np.full((3, self.bs, width), -1, dtype=np.int64)
        dense.reshape(3, -1)[:, slots] = (
            self.draft_tokens,
            self.retrieve_next_token,
            self.retrieve_next_sibling,
        )
        return dense[0], dense[1], dense[2]

    def parents(self) -> NDArray[np.int64]:
        """Each node's parent, int64 `[num_nodes]`, local to the request; -1 for roots and padding."""
        starts = node_starts(self.cu_nodes)
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        previous_sibling, parent_of_first = nodes.copy(), np.full_like(nodes, -1)
        child, sibling = (
            flat_links(self.retrieve_next_token, starts),
            flat_links(self.retrieve_next_sibling, starts),
        )
        previous_sibling[sibling[sibling >= 0]] = nodes[sibling >= 0]
        parent_of_first[child[child >= 0]] = (nodes - starts)[child >= 0]
        *_, first_sibling = doublings(previous_sibling)
        return parent_of_first[first_sibling]

    def depths(self) -> NDArray[np.int64]:
        """Each node's distance from its root, int64 `[num_nodes]`; padding has 0."""
        parents = flat_links(self.parents(), node_starts(self.cu_nodes))
        depths = (parents >= 0).astype(np.int64)
        for ancestor in doublings(np.where(parents >= 0, parents, np.arange(self.num_nodes))):
            depths += depths[ancestor]  # steps up to `ancestor`, and its own from there
        return depths


@dataclass(frozen=True, eq=False)
class DeviceTree:
    """The parts of a forest that a device made; absent ones are known from the shape (see `staging`).

    A part may be a NumPy array instead of a tensor: then the host has it already and it is not copied.

    Attributes:
        draft_tokens: int64 `[num_nodes]`.
        retrieve_next_token: int64 `[num_nodes]`.
        retrieve_next_sibling: int64 `[num_nodes]`.
    """

    draft_tokens: torch.Tensor | NDArray[np.int64] | None = None
    retrieve_next_token: torch.Tensor | NDArray[np.int64] | None = None
    retrieve_next_sibling: torch.Tensor | NDArray[np.int64] | None = None


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


class PrunedDraft(NamedTuple):
    """A draft that was cut before it was verified.

    Attributes:
        request: whose it was, by row.
        path: the tokens from behind the root up to it, itself included.
        source: an index into the tree's `sources`; -1 where that is not known.
        why: the grammar forbids it or one above it, or the budget went to likelier ones.
    """

    request: int
    path: tuple[int, ...]
    source: int
    why: Literal["illegal", "budget"]


@dataclass(frozen=True, eq=False)
class DraftTree:
    """What a producer proposes for one step: host and device views of one forest, held together.

    Attributes:
        step: the step that it was made for; a tree of another step is refused.
        cu_nodes: int64 `[bs + 1]`, always known on the host (capacity, padding included).
        host: the arrays that the host has; None where a device made the tree.
        device: the arrays that a device has.
        made: the work that writes `device`; raises where it failed. None where nothing is still to be written.
        sampled: q of the `SAMPLED` nodes; None if every node is a `POINT`.
        score: float32 `[num_nodes]` expected acceptance of a node given its parent, NaN where unknown; None
            if the producer does not say.
        source: int16 `[num_nodes]` index into `sources`: which producer made the node.
        sources: names of the producers, e.g. `("ngram",)`.
        pruned: drafts that are not in the tree any more, for statistics and pictures.
        drafting_s: host seconds that each of `sources` took to draft it; empty where the producer does not say.
    """

    step: int
    cu_nodes: NDArray[np.int64]
    host: HostTree | None = None
    device: DeviceTree = field(default_factory=DeviceTree)
    made: Launched[object] | None = None
    sampled: SampledProposals | None = None
    score: NDArray[np.float32] | None = None
    source: NDArray[np.int16] | None = None
    sources: tuple[str, ...] = ()
    pruned: tuple[PrunedDraft, ...] = ()
    drafting_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.host is not None and not np.array_equal(self.host.cu_nodes, self.cu_nodes):
            raise TreeError(
                f"cu_nodes is {self.cu_nodes.tolist()}, but the host's tree has {self.host.cu_nodes.tolist()}; "
                "use DraftTree.from_host"
            )

    @classmethod
    def from_host(
        cls,
        step: int,
        host: HostTree,
        *,
        sampled: SampledProposals | None = None,
        score: NDArray[np.float32] | None = None,
        source: NDArray[np.int16] | None = None,
        sources: tuple[str, ...] = (),
    ) -> DraftTree:
        """A tree that the host made; see the attributes."""
        return cls(step, host.cu_nodes, host, sampled=sampled, score=score, source=source, sources=sources)

    @property
    def bs(self) -> int:
        """Number of requests."""
        return len(self.cu_nodes) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all requests, padding included."""
        return int(self.cu_nodes[-1])
