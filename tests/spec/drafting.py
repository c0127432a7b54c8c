"""What the tests of producers share: views and batches, paths of a tree, and a small real draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.staging import staging_for
from specgrammar.protocols.drafter import Drafts
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import Commit, DecodeBatch, ProducerContext, RequestView
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.outcome import Outcome
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import DraftTree, HostTree

VOCAB_SIZE = 16
STOP = VOCAB_SIZE - 1
VOCABULARY = Vocabulary((*(b"%x" % i for i in range(STOP)), b""), stop_ids=(STOP,))


def view(
    tokens: Sequence[int],
    request_id: str = "r",
    *,
    num_prompt_tokens: int | None = None,
    max_draft_tokens: int = 100,
    sampling: SamplingParams | None = None,
) -> RequestView:
    """A request; all of its tokens are the prompt unless told otherwise."""
    num_prompt = len(tokens) if num_prompt_tokens is None else num_prompt_tokens
    return RequestView(request_id, tokens, num_prompt, max_draft_tokens, sampling or SamplingParams())


def batch(*views: RequestView, step: int = 0) -> DecodeBatch:
    return DecodeBatch(step, views)


def commit(tokens: Sequence[int], request_id: str = "r", *, finished: bool = False) -> Commit:
    return Commit(request_id, tuple(tokens), 0, max(0, len(tokens) - 1), finished)


def host(tree: DraftTree) -> HostTree:
    """The tree as a step would get it, from wherever it was made."""
    kind: Literal["chain", "tree"] = "chain" if tree.device.retrieve_next_token is None else "tree"
    return staging_for(kind, InlineDevice()).stage(tree).resolve()


def paths(tree: DraftTree, request: int = 0) -> list[tuple[int, ...]]:
    """For each node of a request its draft tokens from the root down (the root's: none), by the links alone."""
    forest = host(tree)
    start, end = int(forest.cu_nodes[request]), int(forest.cu_nodes[request + 1])
    found: list[tuple[int, ...] | None] = [None] * (end - start)
    found[0] = ()
    for node in range(end - start):
        parent = found[node]
        if parent is None:
            assert forest.draft_tokens[start + node] < 0, f"node {node} comes before its parent"
            continue
        child = int(forest.retrieve_next_token[start + node])
        while child >= 0:
            found[child] = (*parent, int(forest.draft_tokens[start + child]))
            child = int(forest.retrieve_next_sibling[start + child])
    return [path for path in found if path is not None]


def arrays(tree: DraftTree) -> list[object]:
    """All that a tree says, as comparable lists."""
    forest = host(tree)
    parts = (
        forest.cu_nodes,
        forest.draft_tokens,
        forest.retrieve_next_token,
        forest.retrieve_next_sibling,
        tree.score,
        tree.source,
        None if tree.sampled is None else tree.sampled.row_of_node,
        None if tree.sampled is None else tree.sampled.q.numpy(),
    )
    return [tree.step, tree.sources, *(None if part is None else part.tolist() for part in parts)]


class MarkovDrafter:
    """A causal language model in which the next token depends on the last one alone.

    It checks that it is called as `CausalDrafter` allows, and remembers which requests it keeps state for.
    """

    def __init__(self, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self.logits: NDArray[np.float64] = np.random.default_rng(seed).normal(
            scale=2.0, size=(vocab_size, vocab_size)
        )
        self.kept: dict[str, list[int]] = {}
        self.calls: list[tuple[int, bool]] = []

    def q(self, last: int, sampling: SamplingParams) -> NDArray[np.float32]:
        """The distribution behind a token: after temperature, or the argmax."""
        logits = self.logits[last]
        q = np.zeros(self.vocab_size, dtype=np.float32)
        if sampling.greedy:
            q[logits.argmax()] = 1.0
        else:
            weights = np.exp((logits - logits.max()) / sampling.temperature)
            q[:] = weights / weights.sum()
        return q

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        ids = [request.request_id for request in batch.requests]
        assert ids
        assert len(set(ids)) == len(ids)
        assert num_tokens >= 1
        self.calls.append((num_tokens, sampled))
        tokens = np.zeros((len(batch), 1 + num_tokens), dtype=np.int64)
        q = np.zeros((len(batch), num_tokens, self.vocab_size), dtype=np.float32)
        for row, request in enumerate(batch.requests):
            self.kept[request.request_id] = list(request.tokens)
            tokens[row, 0] = last = request.tokens[-1]
            for column in range(num_tokens):
                q[row, column] = self.q(last, request.sampling if sampled else SamplingParams())
                noise = np.random.default_rng((request.sampling.seed, len(request.tokens) + column))
                p = q[row, column].astype(np.float64)
                last = int(noise.choice(self.vocab_size, p=p / p.sum()))
                tokens[row, 1 + column] = last
        made: Outcome[None] = Outcome(lambda: None)
        return Drafts(torch.from_numpy(tokens), torch.from_numpy(q) if sampled else None, made)

    def forget(self, request_id: str) -> None:
        self.kept.pop(request_id, None)


def context(drafter: MarkovDrafter | None = None, max_batch_size: int = 8) -> ProducerContext:
    """What an engine gives: with a drafter it loads that one under the name "markov"."""
    if drafter is None:
        return ProducerContext(VOCABULARY, max_batch_size, InlineDevice())

    def load(name: str) -> MarkovDrafter:
        assert name == "markov"
        return drafter

    return ProducerContext(VOCABULARY, max_batch_size, InlineDevice(), load)
