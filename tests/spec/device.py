"""`accept` and device verification side by side: the same step for both, and one in place of the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.spec.verify_inputs import DeviceForest, DevicePaths, DeviceProposals, DeviceSampling
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals

Verify = Callable[..., DevicePaths]


def forest_of(tree: HostTree, max_depth: int | None = None) -> DeviceForest:
    """The tree as tensors; the deepest path by default."""
    return DeviceForest(
        torch.from_numpy(tree.draft_tokens),
        torch.from_numpy(tree.retrieve_next_token),
        torch.from_numpy(tree.retrieve_next_sibling),
        torch.from_numpy(np.asarray(tree.cu_nodes, dtype=np.int64)),
        int(tree.depths().max(initial=0)) if max_depth is None else max_depth,
    )


def sampling_of(requests: Sequence[RequestView]) -> DeviceSampling:
    """The parameters as tensors."""
    num_tokens = torch.tensor([request.num_tokens for request in requests], dtype=torch.int64)
    return DeviceSampling.of([request.sampling for request in requests], num_tokens)


def proposals_of(tree: HostTree, sampled: SampledProposals) -> DeviceProposals:
    """The distributions as tensors; as many children are tried as any node has."""
    parents = flat_links(tree.parents(), node_starts(tree.cu_nodes))
    most = int(np.bincount(parents[parents >= 0], minlength=1).max())
    return DeviceProposals(torch.from_numpy(sampled.row_of_node), sampled.q, max(1, most))


@dataclass(frozen=True)
class Scene:
    """A step to verify; `sampled` is there for rejection sampling to use."""

    tree: HostTree
    logits: torch.Tensor
    status: NDArray[np.int8]
    requests: list[RequestView]
    sampled: SampledProposals

    @classmethod
    def make(cls, tree: HostTree, seed: int, columns: int) -> Scene:
        """Anything that may come, in a tree: parameters, statuses, broken rows; the target likes the drafts."""
        rng = np.random.default_rng(seed)
        num_nodes = tree.num_nodes
        parents = flat_links(tree.parents(), node_starts(tree.cu_nodes))
        child = np.flatnonzero(parents >= 0)
        # Multiples of 1/4: ties are likely.
        logits = rng.integers(-8, 9, (num_nodes, columns)) / 4
        liked = child[rng.random(len(child)) < 0.7]
        logits[parents[liked], tree.draft_tokens[liked]] += 4
        logits[rng.random(logits.shape) < 0.15] = -np.inf
        logits[rng.random(num_nodes) < 0.03] = -np.inf
        for bad in (np.nan, np.inf):
            logits[rng.random(logits.shape) < 0.01] = bad
        status = rng.choice(np.array([0, 1, 2, 3, *[4] * 8], dtype=np.int8), num_nodes)
        status[tree.draft_tokens < 0] = NodeStatus.PADDING
        requests = [
            RequestView(
                str(request),
                range(int(rng.integers(1, 2**40))),
                1,
                100,
                SamplingParams(
                    float(rng.choice([0, 0.5, 1, 3])),
                    int(rng.choice([0, 0, 2, columns + 5])),
                    float(rng.choice([1, 1, 0.7])),
                    float(rng.choice([0, 0, 0.2])),
                    int(rng.integers(2**63)),
                ),
            )
            for request in range(tree.bs)
        ]
        q_columns = int(rng.integers(1, columns + 1))
        q = torch.from_numpy(rng.normal(0, 1, (3, q_columns)).astype(np.float32)).softmax(-1)
        is_drawn = rng.random(num_nodes) < 0.7
        rows = np.where((parents >= 0) & is_drawn[parents], rng.integers(0, 3, num_nodes), -1)
        kind = torch.bfloat16 if rng.random() < 0.3 else torch.float32
        return cls(tree, torch.from_numpy(logits).to(kind), status, requests, SampledProposals(rows, q))

    def greedy(self) -> Scene:
        """The same with greedy requests."""
        views = [RequestView(view.request_id, view.tokens, 1, 100, SamplingParams()) for view in self.requests]
        return replace(self, requests=views)

    def accepted(self, method: AcceptMethod) -> AcceptedPaths:
        """What `accept` says."""
        return accept(self.tree, self.logits, self.status, self.requests, method=method, sampled=self.sampled)


def as_accept(verify: Verify, chunk: int = 200) -> Callable[..., AcceptedPaths]:
    """A verification in the place of `accept`; log-probabilities are NaN. All trees are of one size."""

    def accept_with(
        tree: HostTree,
        logits: torch.Tensor,
        status: NDArray[np.int8],
        requests: Sequence[RequestView],
        *,
        method: AcceptMethod,
        sampled: SampledProposals | None,
        want_logprobs: bool,
    ) -> AcceptedPaths:
        assert want_logprobs
        size = tree.num_nodes // tree.bs
        found: list[DevicePaths] = []
        width = int(tree.depths().max())
        for start in range(0, tree.bs, chunk):
            some = slice(start, min(start + chunk, tree.bs))
            nodes = slice(size * some.start, size * some.stop)
            part = HostTree(
                np.arange(some.stop - some.start + 1) * size,
                tree.draft_tokens[nodes],
                tree.retrieve_next_token[nodes],
                tree.retrieve_next_sibling[nodes],
            )
            proposals = None
            if method == "rejection" and sampled is not None:
                proposals = proposals_of(part, SampledProposals(sampled.row_of_node[nodes], sampled.q))
            found.append(
                verify(
                    forest_of(part, width),
                    logits[nodes],
                    torch.from_numpy(status[nodes]),
                    sampling_of(requests[some]),
                    proposals,
                )
            )
        index, length, bonus = (torch.cat(parts).numpy() for parts in list(zip(*found, strict=True))[:3])
        return AcceptedPaths(index, length, bonus, np.full(index.shape, np.nan, dtype=np.float32))

    return accept_with
