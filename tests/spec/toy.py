"""A toy world for acceptance: a Markov target, a Markov drafter, a Markov grammar, and a decode loop over them.

Thousands of requests are decoded at once, so that laws can be tested. What may follow a token depends on that
token alone; `STOP` ends a request. Two columns of the logits are padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.reference_law import reference_probs

VOCAB = 7
COLUMNS = 9
STOP = 6
ROOT = 0


@dataclass(frozen=True)
class Toy:
    """Logits and legality of the next token, a row per last token: `[VOCAB, COLUMNS]`."""

    target: NDArray[np.float32]
    draft: NDArray[np.float32]
    legal: NDArray[np.bool_]

    @classmethod
    def make(cls, seed: int) -> Toy:
        """Random logits; each token may be followed by four of the seven."""
        rng = np.random.default_rng(seed)
        target = rng.normal(0, 1.0, (VOCAB, COLUMNS)).astype(np.float32)
        draft = (target + rng.normal(0, 0.8, (VOCAB, COLUMNS))).astype(np.float32)
        legal = np.zeros((VOCAB, COLUMNS), dtype=np.bool_)
        for row in legal:
            row[rng.permutation(VOCAB)[:4]] = True
        return cls(target, draft, legal)

    @property
    def masked(self) -> NDArray[np.float32]:
        """The target's logits under the grammar."""
        return np.where(self.legal, self.target, np.float32(-np.inf))

    def law(self, params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
        """The probability of each output of at most `length` tokens of ordinary masked decoding."""

        def extend(output: tuple[int, ...], mass: float) -> Iterator[tuple[tuple[int, ...], float]]:
            if len(output) == length or (output and output[-1] == STOP):
                yield output, mass
                return
            last = output[-1] if output else ROOT
            for token, p in enumerate(reference_probs(self.masked[last].tolist(), params)):
                if p > 0:
                    yield from extend((*output, token), mass * p)

        return dict(extend((), 1.0))


@dataclass(frozen=True)
class Drafts:
    """One step's drafts: `[requests, nodes]` tokens and parents (local, -1 for root and padding)."""

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    q_row: NDArray[np.int64] | None = None
    q: NDArray[np.float32] | None = None


Propose = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], Drafts]
"""From the running requests' last tokens, their seeds, and the positions behind the last tokens."""


def no_drafts(last: NDArray[np.int64], *_: NDArray[np.int64]) -> Drafts:
    """Ordinary decoding: the root alone."""
    return Drafts(last[:, None], np.full((len(last), 1), -1))


@dataclass(frozen=True)
class Outputs:
    """What was decoded: `[requests, length]`, -1 or NaN behind the end; and each request's number of steps."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    num_steps: NDArray[np.int64]


def node_status(toy: Toy, tree: HostTree) -> NDArray[np.int8]:
    """The grammar's verdict on each node; nodes that nothing links to are padding."""
    starts = node_starts(tree.cu_nodes)
    first = flat_links(tree.retrieve_next_token, starts)
    following = flat_links(tree.retrieve_next_sibling, starts)
    status = np.full(len(starts), NodeStatus.PADDING, dtype=np.int8)
    status[tree.cu_nodes[:-1]] = NodeStatus.LIVE
    level = tree.cu_nodes[:-1]
    while level.size:
        parent, child, below = level, first[level], []
        while (child >= 0).any():
            parent, child = parent[child >= 0], child[child >= 0]
            token = tree.draft_tokens[child]
            legal = (status[parent] == NodeStatus.LIVE) & toy.legal[tree.draft_tokens[parent], token]
            alive = np.where(token == STOP, NodeStatus.ENDED, NodeStatus.LIVE)
            status[child] = np.where(legal, alive, NodeStatus.REJECTED)
            below.append(child)
            child = following[child]
        level = np.concatenate(below) if below else level[:0]
    return status


def decode(
    toy: Toy,
    params: Sequence[SamplingParams],
    length: int,
    propose: Propose,
    *,
    method: AcceptMethod = "target_only",
    logits: NDArray[np.float32] | None = None,
    accept_with: Callable[..., AcceptedPaths] = accept,
) -> Outputs:
    """Decode one output of at most `length` tokens per entry of `params`.

    `logits` stand in for `toy.masked` and `accept_with` for `accept` where a test plants a bias.
    """
    table = torch.from_numpy(toy.masked if logits is None else logits)
    bs = len(params)
    tokens = np.full((bs, length), -1, dtype=np.int64)
    logprobs = np.full((bs, length), np.nan, dtype=np.float32)
    count, num_steps, last = np.zeros(bs, dtype=np.int64), np.zeros(bs, dtype=np.int64), np.full(bs, ROOT)
    running = np.arange(bs)
    seeds = np.array([p.seed for p in params], dtype=np.int64)
    histories = [tuple(range(n)) for n in range(1, length + 2)]
    while running.size:
        drafts = propose(last[running], seeds[running], count[running] + 1)
        num_nodes = drafts.tokens.shape[1]
        cu_nodes = np.arange(len(running) + 1) * num_nodes
        tree = HostTree.from_parents(cu_nodes, drafts.tokens.reshape(-1), drafts.parents.reshape(-1))
        sampled = None
        if drafts.q_row is not None and drafts.q is not None:
            sampled = SampledProposals(drafts.q_row.reshape(-1), torch.from_numpy(drafts.q))
        paths = accept_with(
            tree,
            table[torch.from_numpy(tree.draft_tokens)],
            node_status(toy, tree),
            [RequestView(str(i), histories[count[i]], 1, num_nodes, params[i]) for i in running.tolist()],
            method=method,
            sampled=sampled,
            want_logprobs=True,
        )
        committed = committed_tokens(tree, paths)
        assert paths.logprobs is not None
        going = np.ones(len(running), dtype=np.bool_)
        for column in range(committed.shape[1]):
            token = committed[:, column]
            take = going & (token >= 0) & (count[running] < length)
            rows = running[take]
            tokens[rows, count[rows]] = last[rows] = token[take]
            logprobs[rows, count[rows]] = paths.logprobs[take, column]
            count[rows] += 1
            going &= take & (token != STOP)
        num_steps[running] += 1
        # A request that got nothing in a step would never end.
        assert (committed[:, 0] >= 0).all()
        running = running[(count[running] < length) & (last[running] != STOP)]
    return Outputs(tokens, logprobs, num_steps)


def committed_tokens(tree: HostTree, paths: AcceptedPaths) -> NDArray[np.int64]:
    """Accepted drafts, then the bonus token, then -1: int64 `[bs, width]`."""
    index = paths.accept_index[:, 1:]
    drafts = np.where(index >= 0, tree.draft_tokens[index + tree.cu_nodes[:-1, None]], -1)
    committed = np.concatenate((drafts, np.full((len(drafts), 1), -1)), axis=1)
    committed[np.arange(len(committed)), paths.accept_length] = paths.bonus_token
    return committed
