"""The walk of `accept` over a batch of trees, level by level.

One level decides one token for each request that is still walking, all requests at once: rows of logits go
through torch, links through NumPy. Nodes are flat numbers here; -1 stands for no node and no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.noise import Stream, noise_keys
from specgrammar.spec.rejection import Candidates, choose_candidates
from specgrammar.spec.sampler import (
    greedy_tokens,
    gumbel_argmax,
    sample_tokens,
    token_logprobs,
    truncate_probs,
)
from specgrammar.spec.sampling_table import SamplingTable
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals


class Level(NamedTuple):
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
        self.logits: torch.Tensor = logits
        self.status: NDArray[np.int8] = status
        self.sampled: SampledProposals | None = sampled
        self.token_of_node: NDArray[np.int64] = tree.draft_tokens
        self.table: SamplingTable = SamplingTable.of([request.sampling for request in requests])
        self.num_tokens: NDArray[np.int64] = np.array(
            [request.num_tokens for request in requests], dtype=np.int64
        )
        self.roots: NDArray[np.int64] = tree.cu_nodes[:-1]
        starts = node_starts(tree.cu_nodes)
        self.first_child: NDArray[np.int64] = flat_links(tree.retrieve_next_token, starts)
        self.next_sibling: NDArray[np.int64] = flat_links(tree.retrieve_next_sibling, starts)
        self.may_be_accepted: NDArray[np.bool_] = np.isin(
            status, (NodeStatus.LIVE, NodeStatus.FREE, NodeStatus.ENDED)
        )
        self.bonus: NDArray[np.int64] = np.full(tree.bs, -1, dtype=np.int64)
        self.path: list[NDArray[np.int64]] = [np.zeros(tree.bs, dtype=np.int64)]
        self.levels: list[Level] = []
        self.drawn: NDArray[np.int64] | None = self.draw_at_once(tree)

    def run(self) -> Self:
        """Walk until every path has ended."""
        node = self.roots.copy()
        walking = np.flatnonzero(np.isin(self.status[node], (NodeStatus.LIVE, NodeStatus.FREE)))
        while walking.size:
            depth = len(self.levels)
            token, child = self.decide(walking, node[walking], self.num_tokens[walking] + depth)
            self.levels.append(Level(walking, node[walking], token))
            goes_on = child >= 0
            self.bonus[walking[~goes_on]] = token[~goes_on]
            walking, child = walking[goes_on], child[goes_on]
            if walking.size:
                node[walking] = child
                self.path.append(np.full(len(node), -1, dtype=np.int64))
                self.path[-1][walking] = child - self.roots[walking]
            walking = walking[self.status[child] != NodeStatus.ENDED]
        return self

    def paths(self, want_logprobs: bool) -> AcceptedPaths:
        """What the walk found."""
        accept_index = np.stack(self.path, axis=1)
        logprobs = self.logprobs(accept_index.shape) if want_logprobs else None
        return AcceptedPaths(accept_index, (accept_index[:, 1:] >= 0).sum(axis=1), self.bonus, logprobs)

    def draw_at_once(self, tree: HostTree) -> NDArray[np.int64] | None:
        """Every node's token, where that saves waiting for the device at each level; None where it does not.

        A greedy batch needs the device once, and so does any that is not on the CPU (log-probabilities are
        wanted, else kernels walk there); its whole walk is then on the host. On the CPU a draw costs more than
        a level does.
        """
        if self.table.greedy.all():
            return to_host(greedy_tokens(self.logits))
        if self.logits.device.type == "cpu" or self.sampled is not None:
            return None
        request = np.repeat(np.arange(tree.bs), np.diff(tree.cu_nodes))
        positions = self.num_tokens[request] + tree.depths()
        return to_host(sample_tokens(self.logits, self.table.take(request), positions))

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
        if self.drawn is not None:
            return self.drawn[here]
        return to_host(sample_tokens(rows_of(self.logits, here), self.table.take(walking), positions))

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
        probs = truncate_probs(rows_of(self.logits, here), table)
        choice, residual = choose_candidates(probs, sampled.q, candidates, table.seed, positions)
        chosen = to_host(choice)
        child = np.where(chosen >= 0, nodes[np.arange(len(nodes)), chosen], -1)
        token = self.token_of_node[child]
        if (rejected := np.flatnonzero(chosen < 0)).size:
            keys = noise_keys(table.seed[rejected], positions[rejected], Stream.RESIDUAL)
            token[rejected] = to_host(gumbel_argmax(rows_of(residual, rejected).log(), keys))
        return token, child

    def logprobs(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """`AcceptedPaths.logprobs` of what each level committed."""
        if not self.levels:
            return np.full(shape, np.nan, dtype=np.float32)
        request, node, token = (np.concatenate(column) for column in zip(*self.levels, strict=True))
        depth = np.repeat(np.arange(len(self.levels)), [len(level.token) for level in self.levels])
        return path_logprobs(self.logits, (request, depth), node, token, shape)


def path_logprobs(
    logits: torch.Tensor,
    place: tuple[NDArray[np.int64], NDArray[np.int64]],
    node: NDArray[np.int64],
    token: NDArray[np.int64],
    shape: tuple[int, ...],
) -> NDArray[np.float32]:
    """`AcceptedPaths.logprobs`: at (request, depth) that of the token behind a node; -1 is no token."""
    result = np.full(shape, np.nan, dtype=np.float32)
    drawn = token >= 0
    result[place[0][drawn], place[1][drawn]] = to_host(token_logprobs(logits, node[drawn], token[drawn]))
    return result


def rows_of(matrix: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    """A copy of some rows."""
    return matrix.index_select(0, torch.from_numpy(rows).to(matrix.device))


def to_host(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's values; waits for the device."""
    return tensor.cpu().numpy()
