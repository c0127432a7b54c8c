"""Speculative output has the law of masked ordinary decoding (see `harness` for sample size and power)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from specgrammar.spec.noise import Stream, noise_keys
from specgrammar.spec.sampler import gumbel_argmax, truncate_probs
from specgrammar.spec.sampling import SamplingParams
from tests.spec.harness import (
    LAWS,
    LENGTH,
    LEVEL,
    NUM,
    TOY,
    UNMASKED_Q,
    draft_q,
    p_value,
    point_drafts,
    requests_of,
    sampled_drafts,
)
from tests.spec.toy import VOCAB, Drafts, Toy, decode, no_drafts


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_power(law: SamplingParams) -> None:
    num_cells = sum(p * NUM >= 5 for p in TOY.law(law, LENGTH).values()) + 1
    power = stats.ncx2.sf(stats.chi2.isf(LEVEL, num_cells - 1), num_cells - 1, NUM * 0.1**2)
    assert power > 0.999


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_ordinary_decoding_has_the_law(law: SamplingParams) -> None:
    outputs = decode(TOY, requests_of(law), LENGTH, no_drafts)
    assert (outputs.num_steps == (outputs.tokens >= 0).sum(axis=1)).all()
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_invariant_11_target_only_has_the_law_of_ordinary_decoding(law: SamplingParams) -> None:
    outputs = decode(TOY, requests_of(law), LENGTH, point_drafts(1))
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL


@pytest.mark.parametrize("masked_q", [False, True])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_invariant_11_rejection_has_the_law_of_ordinary_decoding(law: SamplingParams, masked_q: bool) -> None:
    propose = sampled_drafts(2, draft_q(law, masked=masked_q))
    outputs = decode(TOY, requests_of(law), LENGTH, propose, method="rejection")
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_invariant_11_rejection_has_the_law_in_other_worlds(seed: int) -> None:
    """Other targets and grammars; q far from p, of another temperature, and with holes where p has mass."""
    toy, law = Toy.make(seed), SamplingParams(temperature=1.0)
    draft = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (VOCAB, VOCAB)).astype(np.float32))
    q = truncate_probs(draft, [SamplingParams(temperature=0.7, top_k=3)] * VOCAB).numpy()
    outputs = decode(toy, requests_of(law), LENGTH, sampled_drafts(3, q), method="rejection")
    assert p_value(outputs.tokens, toy.law(law, LENGTH)) > LEVEL


def test_rejection_accepts_more_than_target_only() -> None:
    """With q = p every first candidate is taken: two drafts and a bonus, three tokens in one step."""
    law = LAWS[0]
    q = truncate_probs(torch.from_numpy(TOY.masked), [law] * VOCAB).numpy()
    chain = np.array([-1, 0, 1])
    params = requests_of(law, 2000)
    assert (decode(TOY, params, LENGTH, sampled_drafts(4, q, chain), method="rejection").num_steps == 1).all()
    assert decode(TOY, params, LENGTH, sampled_drafts(4, q, chain)).num_steps.mean() > 1.5


def test_drafts_of_the_keyed_stream_keep_the_law() -> None:
    """A drafter may draw with `Stream.DRAFT` and the request's own seed, as ours do.

    Where a draft is cut short by a rejection, the next step draws the positions behind it with the same noise
    again; nothing that was committed has depended on that noise, so it is as good as new.
    """
    law = SamplingParams(temperature=1.0)
    draft = torch.from_numpy(TOY.draft[:, :VOCAB].copy())
    chain = np.array([-1, 0, 1, 2])

    def propose(last: NDArray[np.int64], seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> Drafts:
        tokens = [last]
        for depth in range(len(chain) - 1):
            keys = noise_keys(seeds, positions + depth, Stream.DRAFT)
            tokens.append(gumbel_argmax(draft[torch.from_numpy(tokens[-1])], keys).numpy())
        rows = np.stack([np.full_like(last, -1), *tokens[:-1]], axis=1)
        return Drafts(np.stack(tokens, axis=1), np.tile(chain, (len(last), 1)), rows, UNMASKED_Q)

    outputs = decode(TOY, requests_of(law), LENGTH, propose, method="rejection")
    assert 1 < outputs.num_steps.mean() < LENGTH
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL
