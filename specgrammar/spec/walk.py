"""The walk of `accept` over a batch of trees, level by level.

One level decides one token for each request that is still walking, all requests at once: rows of logits go
through torch, links through NumPy. Nodes are flat numbers here; -1 stands for no node and no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.noise import Stream, noise_keys
from specgrammar.spec.rejection import Candidates, choose_candidates
from specgrammar.spec.sampler import (
    SamplingTable,
    greedy_tokens,
    gumbel_argmax,
    sample_tokens,
    token_logprobs,
    truncate_probs,
)
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals


class _Level(NamedTuple):
    """What one level decided: for each request walking, at its node, the token that follows; int64."""

    request: NDArray[np.int64]
    node: NDArray[np.int64]
    token: NDArray[np.int64]


class Walk:
    """One call of `accept`, whose arguments it takes as they are; `sampled` asks for rejection sampling."""

    def __init__(
        self,
        tree: HostTree,
        logits: torch.Tensor,
        status: NDArray[np.int8],
        requests: Sequence[RequestView],
        sampled: SampledProposals | None,
    ) -> None:
        self.logits, self.status, self.sampled = logits, status, sampled
        self.token_of_node = tree.draft_tokens
        self.table = SamplingTable.of([request.sampling for request in requests])
        self.num_tokens = np.array([request.num_tokens for request in requests], dtype=np.int64)
        self.roots = tree.cu_nodes[:-1]
        starts = node_starts(tree.cu_nodes)
        self.first_child = flat_links(tree.retrieve_next_token, starts)
        self.next_sibling = flat_links(tree.retrieve_next_sibling, starts)
        self.may_be_accepted = np.isin(status, (NodeStatus.LIVE, NodeStatus.FREE, NodeStatus.ENDED))
        # A greedy batch needs the device once; its whole walk is then on the host.
        self.argmax = greedy_tokens(logits).cpu().numpy() if self.table.greedy.all() else None

    def run(self, want_logprobs: bool) -> AcceptedPaths:
        """Walk until every path has ended."""
        node = self.roots.copy()
        bonus = np.full(len(node), -1, dtype=np.int64)
        path = [np.zeros(len(node), dtype=np.int64)]
        levels: list[_Level] = []
        walking = np.flatnonzero(np.isin(self.status[node], (NodeStatus.LIVE, NodeStatus.FREE)))
        while walking.size:
            depth = len(path) - 1
            token, child = self.decide(walking, node[walking], self.num_tokens[walking] + depth)
            levels.append(_Level(walking, node[walking], token))
            goes_on = child >= 0
            bonus[walking[~goes_on]] = token[~goes_on]
            walking, child = walking[goes_on], child[goes_on]
            if walking.size:
                node[walking] = child
                path.append(np.full(len(node), -1, dtype=np.int64))
                path[-1][walking] = child - self.roots[walking]
            walking = walking[self.status[child] != NodeStatus.ENDED]
        accept_index = np.stack(path, axis=1)
        logprobs = self.logprobs(levels, accept_index.shape) if want_logprobs else None
        return AcceptedPaths(accept_index, (accept_index[:, 1:] >= 0).sum(axis=1), bonus, logprobs)

    def decide(
        self, walking: NDArray[np.int64], here: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The token that follows each node `here` and the child that carries it; -1 where there is none."""
        if self.sampled is None:
            token = self.draw(walking, here, positions)
            return token, self.find_child(here, token)
        token, child = np.empty_like(here), np.empty_like(here)
        first = self.first_child[here]
        drawn = (first >= 0) & (self.sampled.row_of_node[first] >= 0) & ~self.table.greedy[walking]
        if (part := np.flatnonzero(~drawn)).size:
            token[part] = self.draw(walking[part], here[part], positions[part])
            child[part] = self.find_child(here[part], token[part])
        if (part := np.flatnonzero(drawn)).size:
            token[part], child[part] = self.try_candidates(
                self.sampled, self.table.take(walking[part]), here[part], positions[part]
            )
        return token, child

    def draw(
        self, walking: NDArray[np.int64], here: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The target's own tokens behind `here`, -1 where the row offers none."""
        if self.argmax is not None:
            return self.argmax[here]
        return _to_host(sample_tokens(_rows(self.logits, here), self.table.take(walking), positions))

    def find_child(self, here: NDArray[np.int64], token: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first child of each node that may be accepted and carries the token, -1 for none."""
        child = np.where(token >= 0, self.first_child[here], -1)
        while True:
            fits = self.may_be_accepted[child] & (self.token_of_node[child] == token)
            missed = (child >= 0) & ~fits
            if not missed.any():
                return child
            child = np.where(missed, self.next_sibling[child], child)

    def try_candidates(
        self,
        sampled: SampledProposals,
        table: SamplingTable,
        here: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rejection sampling of the children of `here`, as `decide`; all of them are SAMPLED."""
        columns = [self.first_child[here]]
        while ((following := np.where(columns[-1] >= 0, self.next_sibling[columns[-1]], -1)) >= 0).any():
            columns.append(following)
        nodes = np.stack(columns, axis=1)
        candidates = Candidates(
            exists=nodes >= 0,
            token=self.token_of_node[nodes],
            q_row=sampled.row_of_node[nodes],
            may_be_accepted=self.may_be_accepted[nodes],
        )
        probs = truncate_probs(_rows(self.logits, here), table)
        choice, residual = choose_candidates(probs, sampled.q, candidates, table.seed, positions)
        chosen = _to_host(choice)
        child = np.where(chosen >= 0, nodes[np.arange(len(nodes)), chosen], -1)
        token = self.token_of_node[child]
        if (rejected := np.flatnonzero(chosen < 0)).size:
            keys = noise_keys(table.seed[rejected], positions[rejected], Stream.RESIDUAL)
            token[rejected] = _to_host(gumbel_argmax(_rows(residual, rejected).log(), keys))
        return token, child

    def logprobs(self, levels: list[_Level], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`AcceptedPaths.logprobs` of what each level committed."""
        result = np.full(shape, np.nan, dtype=np.float32)
        if levels:
            depth = np.repeat(np.arange(len(levels)), [len(level.token) for level in levels])
            request = np.concatenate([level.request for level in levels])
            node = np.concatenate([level.node for level in levels])
            token = np.concatenate([level.token for level in levels])
            drawn = token >= 0
            values = token_logprobs(self.logits, node[drawn], token[drawn])
            result[request[drawn], depth[drawn]] = _to_host(values)
        return result


def _rows(matrix: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    return matrix.index_select(0, torch.from_numpy(rows).to(matrix.device))


def _to_host(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()
