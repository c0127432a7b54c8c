"""`chain`: one continuation per request, by prompt lookup or by a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specgrammar.checks import check_choice, check_int
from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    CausalDrafter,
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    Topology,
    TreeProducer,
)
from specgrammar.spec.logs import Lanes
from specgrammar.spec.options import check_match_lengths
from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.requests import RequestHistories
from specgrammar.trees.tree import DraftTree, HostTree, SampledProposals

PROMPT_LOOKUP = "prompt_lookup"
"""The drafter that needs no model."""


@dataclass(frozen=True)
class ChainAlgorithm:
    """Chains of up to `num_draft_tokens` tokens.

    Attributes:
        drafter: `prompt_lookup` copies what followed the most recent of the longest matches of the request's
            last tokens in its own prompt and output. Anything else is the path or name of a causal model with
            the target's tokenizer.
        num_draft_tokens: most draft tokens.
        draft_sampling: `greedy` drafts a model's argmax. `sampled` draws from the model with the request's
            sampling parameters and states the distributions, for acceptance by rejection sampling; requests
            with temperature 0 still get the argmax.
        min_match: for prompt lookup, tokens that must match at least.
        max_match: for prompt lookup, tokens that are compared at most.
    """

    drafter: str = PROMPT_LOOKUP
    num_draft_tokens: int = 4
    draft_sampling: Literal["greedy", "sampled"] = "greedy"
    min_match: int = 1
    max_match: int = 4
    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, str) or not self.drafter:
            raise ConfigError(
                f"chain: drafter = {self.drafter!r}; expected {PROMPT_LOOKUP!r} or the path or name of a model"
            )
        check_int("chain: num_draft_tokens", self.num_draft_tokens, 1)
        check_choice("chain: draft_sampling", self.draft_sampling, ("greedy", "sampled"))
        check_match_lengths("chain", self.min_match, self.max_match)
        if self.draft_sampling == "sampled" and self.drafter == PROMPT_LOOKUP:
            raise ConfigError(
                f"chain: draft_sampling = 'sampled' with drafter = {PROMPT_LOOKUP!r}, which has no "
                "distribution to sample from; expected 'greedy', or a model as the drafter"
            )

    @property
    def topology(self) -> Topology:
        """Chains of the root and `num_draft_tokens` nodes."""
        return Topology("chain", 1 + self.num_draft_tokens, self.num_draft_tokens)

    @property
    def proposal(self) -> Proposal:
        """SAMPLED if a model's draws are stated with their distributions, POINT otherwise."""
        return Proposal.SAMPLED if self.draft_sampling == "sampled" else Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """False: histories are read before the launch. The grammar still advances under the forward."""
        return False

    def make_producer(self, context: ProducerContext) -> TreeProducer:
        """Build the producer.

        Raises:
            ConfigError: the engine loads no draft models, or the model has ids that the target lacks.
        """
        if self.drafter == PROMPT_LOOKUP:
            return LookupProducer(self)
        drafter = context.load_drafter(self.drafter)
        if drafter.vocab_size > context.vocabulary.vocab_size:
            raise ConfigError(
                f"chain: drafter = {self.drafter!r} has {drafter.vocab_size} tokens, the target "
                f"{context.vocabulary.vocab_size}; expected a model with the target's tokenizer"
            )
        return ModelProducer(self, drafter)


class LookupProducer:
    """Proposes what followed the most recent of the longest matches."""

    needs: Needs = "history"

    def __init__(self, options: ChainAlgorithm) -> None:
        """No request yet."""
        self._options = options
        self._places = NgramPlaces(options.min_match, options.max_match)
        self._histories = RequestHistories(self._places)

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One chain per request, the root alone where nothing matches; see `TreeProducer`."""
        drafts: list[list[int]] = [[] for _ in batch.requests]
        if batch.requests:
            lanes = Lanes.of(self._histories.update(batch.requests))
            longest_first = self._places.find(lanes, self._places.contexts(lanes), 1)[0]
            matched = np.flatnonzero((longest_first >= 0).any(axis=0))
            place = longest_first[(longest_first[:, matched] >= 0).argmax(axis=0), matched]
            copied = self._places.copy_from(lanes[matched], place, self._options.num_draft_tokens)
            for request, tokens in zip(matched.tolist(), copied.T.tolist(), strict=True):
                drafts[request] = tokens[: _num_draft_tokens(self._options, batch.requests[request])]
        return _tree(batch, [[view.tokens[-1], *d] for view, d in zip(batch.requests, drafts, strict=True)])

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed."""
        self._histories.observe(commits)


class ModelProducer:
    """Proposes what a draft model says."""

    needs: Needs = "history"

    def __init__(self, options: ChainAlgorithm, drafter: CausalDrafter) -> None:
        """Take over a drafter; nobody else may call it."""
        self._options = options
        self._drafter = drafter

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One chain per request, see `TreeProducer`.

        The drafter is asked once for the whole batch, for as many tokens as the request needs that needs most.
        A chain ends before an id that is no token of the drafter's: a model whose logits are NaN says -1.

        Raises:
            ModelError: the drafter's answer has another shape than was asked for.
        """
        lengths = [_num_draft_tokens(self._options, view) for view in batch.requests]
        width = max(lengths, default=0)
        if width == 0:
            return _tree(batch, [[view.tokens[-1]] for view in batch.requests])
        draws = [self._options.draft_sampling == "sampled" and not v.sampling.greedy for v in batch.requests]
        drafts, q = self._drafter.draft(batch, width, sampled=any(draws))
        if drafts.shape != (len(batch), width):
            raise self._misshapen("token ids", drafts.shape, (len(batch), width))
        lengths = np.minimum(lengths, _num_leading_tokens(drafts, self._drafter.vocab_size)).tolist()
        chains = [
            [view.tokens[-1], *row[:length]]
            for view, row, length in zip(batch.requests, drafts.tolist(), lengths, strict=True)
        ]
        if not any(draws):
            return _tree(batch, chains)

        q_shape = (len(batch), width, self._drafter.vocab_size)
        if q is None or tuple(q.shape) != q_shape:
            raise self._misshapen("probabilities", None if q is None else tuple(q.shape), q_shape)
        row_of_node: list[int] = []
        for request, (length, draw) in enumerate(zip(lengths, draws, strict=True)):
            first = request * width
            row_of_node += [-1, *(range(first, first + length) if draw else [-1] * length)]
        rows = np.array(row_of_node, dtype=np.int64)
        return _tree(batch, chains, SampledProposals(rows, q.reshape(-1, q.shape[-1])))

    def observe(self, commits: Sequence[Commit]) -> None:
        """Let the drafter forget finished requests; it sees what was committed in the next batch."""
        for commit in commits:
            if commit.finished:
                self._drafter.forget(commit.request_id)

    def _misshapen(self, what: str, found: tuple[int, ...] | None, expected: tuple[int, ...]) -> ModelError:
        return ModelError(
            f"drafter {self._options.drafter!r} returned {what} of shape {found}; expected {expected}"
        )


def _num_draft_tokens(options: ChainAlgorithm, view: RequestView) -> int:
    return min(options.num_draft_tokens, view.max_draft_tokens)


def _num_leading_tokens(drafts: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """How many ids of each row come before the first that is outside of the vocabulary."""
    good = (drafts >= 0) & (drafts < vocab_size)
    num_leading: NDArray[np.int64] = np.cumprod(good, axis=1, dtype=np.int64).sum(axis=1)
    return num_leading


def _tree(batch: DecodeBatch, chains: list[list[int]], sampled: SampledProposals | None = None) -> DraftTree:
    host = HostTree.from_chains(chains)
    source = np.zeros(host.num_nodes, dtype=np.int16)
    return DraftTree(batch.step, host.cu_nodes, host, sampled=sampled, source=source, sources=("chain",))
