"""`chain`: one continuation per request, by prompt lookup or by a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.checks import check_choice, check_int
from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.drafter import CausalDrafter, Drafts
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    Topology,
    TreeProducer,
)
from specgrammar.protocols.staging import Device
from specgrammar.spec.logs import Lanes
from specgrammar.spec.options import check_match_lengths
from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.requests import RequestHistories
from specgrammar.spec.roots import roots_tree
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree, SampledProposals

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
        """True with a draft model. Prompt lookup reads histories before the launch."""
        return self.drafter != PROMPT_LOOKUP

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
        return ModelProducer(self, drafter, context.device)


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
        lanes = Lanes.of(self._histories.update(batch.requests))
        drafts = self._lookup(lanes, self._places.contexts(lanes), self._options.num_draft_tokens)
        chains = [
            [view.tokens[-1], *tokens[: _num_draft_tokens(self._options, view)]]
            for view, tokens in zip(batch.requests, drafts, strict=True)
        ]
        return _tree(batch, chains)

    def continue_behind(
        self, requests: Sequence[RequestView], drafts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[list[int]]:
        """See `SupportsContinuation`."""
        lanes = Lanes.of(self._histories.of(requests))
        return self._lookup(lanes, self._places.contexts_behind(lanes, drafts), num_tokens)

    def _lookup(self, lanes: Lanes, contexts: NDArray[np.uint64], num_tokens: int) -> list[list[int]]:
        """What followed the most recent of the longest matches of each context, empty where nothing matches."""
        chains: list[list[int]] = [[] for _ in range(len(lanes.start))]
        if not chains or num_tokens < 1:
            return chains
        longest_first = self._places.find(lanes, contexts, 1)[0]
        matched = np.flatnonzero((longest_first >= 0).any(axis=0))
        place = longest_first[(longest_first[:, matched] >= 0).argmax(axis=0), matched]
        copied = self._places.copy_from(lanes[matched], place, num_tokens)
        for request, tokens in zip(matched.tolist(), copied.T.tolist(), strict=True):
            chains[request] = tokens
        return chains

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed."""
        self._histories.observe(commits)


class ModelProducer:
    """Proposes what a draft model says; the ids stay on the device, and no launch waits for them."""

    needs: Needs = "nothing"

    def __init__(self, options: ChainAlgorithm, drafter: CausalDrafter, device: Device) -> None:
        """Take over a drafter, whose work is on this device's stream; nobody else may call it."""
        self._options = options
        self._drafter = drafter
        self._device = device

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One chain per request, see `TreeProducer`.

        The drafter is asked once for the whole batch, for as many tokens as the request needs that needs most.
        A chain is cut before an id that is no token of the drafter's: a model whose logits are NaN says -1.

        Raises:
            ModelError: the drafter's answer has another shape than was asked for.
        """
        lengths = np.array([_num_draft_tokens(self._options, view) for view in batch.requests], dtype=np.int64)
        width = int(lengths.max(initial=0))
        if width == 0:
            return roots_tree(batch, self._device)
        draws = np.array(
            [self._options.draft_sampling == "sampled" and not v.sampling.greedy for v in batch.requests]
        )
        drafts = self._drafter.draft(batch, width, sampled=bool(draws.any()))
        self._check("token ids", drafts.tokens, (len(batch), 1 + width))
        column = np.arange(1 + width)
        is_node = column <= lengths[:, None]
        cu_nodes = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths + 1)))
        tokens = torch.empty(int(cu_nodes[-1]), dtype=torch.int64, device=drafts.tokens.device)
        nodes = torch.from_numpy(is_node)
        made = self._device.launch(lambda: self._write(tokens, drafts, nodes), "draft")
        sampled = None
        if draws.any():
            self._check("probabilities", drafts.q, (len(batch), width, self._drafter.vocab_size))
            rows = np.where(
                draws[:, None] & (column > 0), column - 1 + width * np.arange(len(batch))[:, None], -1
            )
            assert drafts.q is not None
            sampled = SampledProposals(rows[is_node], drafts.q.view(-1, drafts.q.shape[-1]))
        return DraftTree(
            batch.step,
            cu_nodes,
            device=DeviceTree(tokens),
            made=made,
            sampled=sampled,
            source=np.zeros(len(tokens), dtype=np.int16),
            sources=("chain",),
        )

    def observe(self, commits: Sequence[Commit]) -> None:
        """Let the drafter forget finished requests; it sees what was committed in the next batch."""
        for commit in commits:
            if commit.finished:
                self._drafter.forget(commit.request_id)

    def _write(self, tokens: torch.Tensor, drafts: Drafts, is_node: torch.Tensor) -> None:
        """The nodes' ids, on the stream; -1 from the first that is no token on."""
        drafts.made.value()
        is_token = (drafts.tokens >= 0) & (drafts.tokens < self._drafter.vocab_size)
        is_token[:, 0] = True  # the root is the target's
        ids = torch.where(is_token.cumprod(dim=1).bool(), drafts.tokens, -1)
        tokens.copy_(ids[is_node.to(ids.device)])

    def _check(self, what: str, found: torch.Tensor | None, expected: tuple[int, ...]) -> None:
        shape = None if found is None else tuple(found.shape)
        if shape != expected:
            raise ModelError(
                f"drafter {self._options.drafter!r} returned {what} of shape {shape}; expected {expected}"
            )


def _num_draft_tokens(options: ChainAlgorithm, view: RequestView) -> int:
    return min(options.num_draft_tokens, view.max_draft_tokens)


def _tree(batch: DecodeBatch, chains: list[list[int]]) -> DraftTree:
    host = HostTree.from_chains(chains)
    source = np.zeros(host.num_nodes, dtype=np.int16)
    return DraftTree(batch.step, host.cu_nodes, host, source=source, sources=("chain",))
