"""The mistakes that implementations of acceptance make, planted one by one: the harness notices each.

Each comes with the same thing done right, which it does not object to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.accept import accept
from specgrammar.spec.noise import Stream, noise_keys
from specgrammar.spec.rejection import Candidates, choose_candidates
from specgrammar.spec.sampler import gumbel_argmax, truncate_probs
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.harness import (
    LAWS,
    LENGTH,
    LEVEL,
    ONE_LEVEL,
    TOY,
    UNMASKED_Q,
    p_value,
    point_drafts,
    requests_of,
    sampled_drafts,
)
from tests.spec.toy import COLUMNS, VOCAB, Drafts, Propose, decode


def planted(propose: Propose, law: SamplingParams, method: AcceptMethod = "rejection") -> float:
    """The p-value of what comes out."""
    outputs = decode(TOY, requests_of(law), LENGTH, propose, method=method)
    return p_value(outputs.tokens, TOY.law(law, LENGTH))


def test_planted_truncation_before_the_mask_is_noticed() -> None:
    law, plain = SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0)
    cut = truncate_probs(torch.from_numpy(TOY.target[:, :VOCAB].copy()), [law] * VOCAB).log().numpy()
    cut = np.pad(cut, ((0, 0), (0, COLUMNS - VOCAB)), constant_values=-np.inf)
    cut = np.where(TOY.legal, cut, np.float32(-np.inf))
    cut = np.where((cut > -np.inf).any(axis=1, keepdims=True), cut, TOY.masked)
    outputs = decode(TOY, requests_of(plain), LENGTH, point_drafts(1), logits=cut)
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) < LEVEL


def test_planted_top_k_children_taken_for_draws_are_noticed() -> None:
    top = UNMASKED_Q.argsort(axis=1)[:, ::-1][:, :2].copy()

    def propose(last: NDArray[np.int64], *_: NDArray[np.int64]) -> Drafts:
        rows = np.stack([np.full_like(last, -1), last, last], axis=1)
        tokens = np.concatenate((last[:, None], top[last]), axis=1)
        return Drafts(tokens, np.tile(ONE_LEVEL, (len(last), 1)), rows, UNMASKED_Q)

    assert planted(propose, LAWS[0]) < LEVEL
    assert planted(propose, LAWS[0], "target_only") > LEVEL


def without(drafts: Drafts, gone: NDArray[np.bool_]) -> Drafts:
    """The drafts with some leaves turned into padding."""
    assert drafts.q_row is not None
    return Drafts(
        np.where(gone, -1, drafts.tokens),
        np.where(gone, -1, drafts.parents),
        np.where(gone, -1, drafts.q_row),
        drafts.q,
    )


def test_planted_pruning_of_sampled_children_is_noticed() -> None:
    honest = sampled_drafts(5, UNMASKED_Q, ONE_LEVEL)

    def propose(last: NDArray[np.int64], *rest: NDArray[np.int64]) -> Drafts:
        drafts = honest(last, *rest)
        dead = ~TOY.legal[last[:, None], drafts.tokens]
        dead[:, 0] = False
        return without(drafts, dead)

    assert planted(propose, LAWS[0]) < LEVEL
    assert planted(honest, LAWS[0]) > LEVEL


def test_planted_joining_of_equal_sampled_children_is_noticed() -> None:
    """q likes a token that the target does not; an equal second candidate has to move the residual again."""
    unlikely = np.where(TOY.legal, TOY.target, np.inf)[:, :VOCAB].argmin(axis=1)
    likely = TOY.masked.argmax(axis=1)
    q = (0.1 * UNMASKED_Q + 0.6 * np.eye(VOCAB)[unlikely] + 0.3 * np.eye(VOCAB)[likely]).astype(np.float32)
    honest = sampled_drafts(6, q, ONE_LEVEL)

    def propose(last: NDArray[np.int64], *rest: NDArray[np.int64]) -> Drafts:
        drafts = honest(last, *rest)
        equal = np.zeros_like(drafts.tokens, dtype=np.bool_)
        equal[:, 2] = drafts.tokens[:, 1] == drafts.tokens[:, 2]
        return without(drafts, equal)

    assert planted(propose, LAWS[0]) < LEVEL
    assert planted(honest, LAWS[0]) > LEVEL


@pytest.mark.parametrize("masked_residual", [True, False])
def test_planted_unmasked_residual_is_noticed(masked_residual: bool) -> None:
    """Illegal tokens are never drawn from this residual either: p - q is taken before the mask, then masked."""

    def accept_one_level(
        tree: HostTree,
        logits: torch.Tensor,
        status: NDArray[np.int8],
        requests: Sequence[RequestView],
        *,
        method: AcceptMethod,
        sampled: SampledProposals,
        want_logprobs: bool,
    ) -> AcceptedPaths:
        paths = accept(
            tree, logits, status, requests, method=method, sampled=sampled, want_logprobs=want_logprobs
        )
        roots = tree.cu_nodes[:-1]
        children = roots[:, None] + np.array([1, 2])
        candidates = Candidates(
            exists=np.ones_like(children, dtype=np.bool_),
            token=tree.draft_tokens[children],
            q_row=sampled.row_of_node[children],
            may_be_accepted=np.zeros_like(children, dtype=np.bool_),
        )
        last = tree.draft_tokens[roots]
        table = TOY.masked if masked_residual else TOY.target
        probs = truncate_probs(torch.from_numpy(table[last, :VOCAB]), [r.sampling for r in requests])
        seeds = np.array([r.sampling.seed for r in requests])
        positions = np.array([len(r.tokens) for r in requests])
        _, residual = choose_candidates(probs, sampled.q, candidates, seeds, positions)
        residual[torch.from_numpy(~TOY.legal[last, :VOCAB])] = 0
        bonus = gumbel_argmax(residual.log(), noise_keys(seeds, positions, Stream.RESIDUAL)).numpy()
        bonus = np.where(bonus < 0, paths.bonus_token, bonus)
        return AcceptedPaths(
            paths.accept_index,
            paths.accept_length,
            np.where(paths.accept_length == 0, bonus, paths.bonus_token),
            paths.logprobs,
        )

    law = LAWS[0]
    outputs = decode(
        TOY,
        requests_of(law),
        LENGTH,
        sampled_drafts(7, UNMASKED_Q, ONE_LEVEL),
        method="rejection",
        accept_with=accept_one_level,
    )
    assert (p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL) == masked_residual
