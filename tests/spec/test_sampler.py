"""The law of one row: against its definition, and the same bits in any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from specgrammar.spec.noise import Stream
from specgrammar.spec.sampler import (
    greedy_tokens,
    gumbel_argmax,
    sample_tokens,
    token_logprobs,
    top_tokens,
    truncate_probs,
)
from specgrammar.spec.sampling import SamplingParams
from tests.spec.reference_law import reference_probs

INF, NAN = math.inf, math.nan

# Multiples of 1/4 make ties likely and keep what is not tied apart by more than any rounding.
LOGIT = st.one_of(st.integers(-20, 20).map(lambda i: i / 4), st.just(-INF))
ROW = st.lists(LOGIT, min_size=1, max_size=12).filter(lambda row: max(row) > -INF)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**63 - 1),
)


def mixed_params(count: int) -> list[SamplingParams]:
    """Every kind of parameters in turn."""
    kinds: list[dict[str, float]] = [
        {},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 40},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 40.0, "top_p": 0.995},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 1.0, "top_k": 300, "top_p": 0.8, "min_p": 0.01},
    ]
    return [
        SamplingParams(
            temperature=kind.get("temperature", 0.0),
            top_k=int(kind.get("top_k", 0)),
            top_p=kind.get("top_p", 1.0),
            min_p=kind.get("min_p", 0.0),
            seed=seed,
        )
        for seed in range(count)
        for kind in [kinds[seed % len(kinds)]]
    ]


@given(ROW, PARAMS)
def test_truncation_is_what_its_definition_says(row: list[float], params: SamplingParams) -> None:
    expected = reference_probs(row, params)
    # A cut that falls within rounding of a border may go either way.
    for epsilon in (-1e-4, 1e-4):
        top_p = min(1.0, max(1e-6, params.top_p + epsilon)) if params.top_p < 1 else 1.0
        min_p = min(1.0, max(0.0, params.min_p * (1 + epsilon)))
        near = SamplingParams(params.temperature, params.top_k, top_p, min_p)
        assume(np.allclose(reference_probs(row, near), expected, atol=1e-9))
    actual = truncate_probs(torch.tensor([row]), [params])
    assert actual.dtype == torch.float32
    assert actual[0].tolist() == pytest.approx(expected, abs=1e-6)


@given(ROW, PARAMS, st.integers(0, 2**40))
def test_only_tokens_of_the_law_are_drawn(row: list[float], params: SamplingParams, position: int) -> None:
    logits = torch.tensor([row])
    token = int(sample_tokens(logits, [params], np.array([position])))
    assert truncate_probs(logits, [params])[0, token] > 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.5, top_k=4),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=2.0, top_k=6, top_p=0.9, min_p=0.1),
    ],
    ids=str,
)
def test_draws_have_the_law_of_truncate_probs(params: SamplingParams) -> None:
    """20,000 seeds on 9 tokens, level 1e-6: an effect of w = 0.06 is found with a power above 0.99."""
    num = 20_000
    row = torch.tensor([1.0, 0.2, -INF, 0.7, -1.0, 2.0, 1.9, -0.5, 0.0])
    many = [
        SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p, seed=seed)
        for seed in range(num)
    ]
    tokens = sample_tokens(row.expand(num, -1), many, np.full(num, 17))
    expected = np.array(reference_probs(row.tolist(), params))
    counts = np.bincount(tokens.numpy(), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(counts[kept], num * expected[kept] / expected[kept].sum()).pvalue > 1e-6
    power = stats.ncx2.sf(stats.chi2.isf(1e-6, kept.sum() - 1), kept.sum() - 1, num * 0.06**2)
    assert power > 0.99


@pytest.mark.parametrize("columns", [5, 64, 1031, 5003])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(columns: int) -> None:
    rows = 21
    logits = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 3
    logits[torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.2] = -INF
    params, positions = mixed_params(rows), np.arange(rows) + 5
    probs, tokens = truncate_probs(logits, params), sample_tokens(logits, params, positions)
    logprobs = token_logprobs(logits, np.arange(rows), tokens.numpy())
    order = list(range(rows))[::-1]
    backwards = truncate_probs(logits[order], [params[i] for i in order])[order]
    assert torch.equal(probs, backwards)
    for i in range(rows):
        assert torch.equal(truncate_probs(logits[i : i + 1], params[i : i + 1])[0], probs[i])
        assert sample_tokens(logits[i : i + 1], params[i : i + 1], positions[i : i + 1])[0] == tokens[i]
        assert token_logprobs(logits[i : i + 1], np.array([0]), tokens[i : i + 1].numpy())[0] == logprobs[i]
    assert probs.sum(-1).tolist() == pytest.approx([1.0] * rows, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_upcast_row_by_row(dtype: torch.dtype) -> None:
    logits = (torch.randn(14, 501, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    params, positions = mixed_params(14), np.arange(14)
    assert torch.equal(
        sample_tokens(logits, params, positions), sample_tokens(logits.float(), params, positions)
    )
    assert torch.equal(truncate_probs(logits, params), truncate_probs(logits.float(), params))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [2, 7, 64, 1000, 49_152])
def test_greedy_takes_the_lowest_id_of_a_tie(dtype: torch.dtype, columns: int) -> None:
    logits = torch.full((3, columns), -1.0, dtype=dtype)
    logits[0, columns // 2 :] = 2.5
    logits[1, columns - 1] = 2.5
    assert greedy_tokens(logits).tolist() == [columns // 2, columns - 1, 0]


@pytest.mark.parametrize("params", mixed_params(7), ids=str)
def test_a_row_that_offers_nothing_gives_no_token(params: SamplingParams) -> None:
    """All -inf, one NaN, one +inf, only NaN; and the good row between them is not harmed."""
    good = [0.0, 1.0, -INF, 2.0]
    logits = torch.tensor(
        [[-INF] * 4, [0.0, NAN, 1.0, -INF], good, [INF, 0.0, 1.0, 2.0], [NAN] * 4, [NAN, INF, -INF, 0.0]]
    )
    many, positions = [params] * len(logits), np.full(len(logits), 3)
    tokens = sample_tokens(logits, many, positions)
    assert tokens[[0, 1, 3, 4, 5]].tolist() == [-1] * 5
    assert tokens[2] == sample_tokens(torch.tensor([good]), [params], positions[:1])[0]
    probs = truncate_probs(logits, many)
    assert (probs[[0, 1, 3, 4, 5]] == 0).all()
    assert torch.equal(probs[2], truncate_probs(torch.tensor([good]), [params])[0])


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-10])
def test_a_tiny_temperature_is_the_argmax(temperature: float) -> None:
    logits = torch.tensor([[1.0, 30.0, 29.9, -INF, -4.0]])
    params = [SamplingParams(temperature=temperature)]
    assert truncate_probs(logits, params).tolist() == [[0, 1, 0, 0, 0]]
    assert sample_tokens(logits, params, np.array([0])).tolist() == [1]


def test_a_huge_temperature_is_uniform_over_the_legal_tokens() -> None:
    logits = torch.tensor([[1.0, 30.0, -INF, -4.0]])
    probs = truncate_probs(logits, [SamplingParams(temperature=1e300)])
    assert probs[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_ties_at_a_border_are_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    for params in (
        SamplingParams(1.0, top_k=2),
        SamplingParams(1.0, top_p=0.6),
        SamplingParams(1.0, min_p=0.36),
    ):
        assert (truncate_probs(logits, [params])[0] > 0).tolist() == [True, True, True, True, False]


def test_top_p_of_a_flat_row_looks_beyond_the_first_candidates() -> None:
    """5,000 nearly equal tokens at top-p 0.9: 4,500 stay, more than are sorted at first."""
    logits = -torch.arange(5000).flip(0)[None] * 1e-7
    kept = truncate_probs(logits, [SamplingParams(temperature=1.0, top_p=0.9)])[0] > 0
    assert abs(int(kept.sum()) - 4500) <= 2
    assert kept[-4490:].all()


def test_streams_lanes_seeds_and_positions_draw_independently() -> None:
    """Of 16 equal tokens two unrelated draws agree in 1/16 of 20,000 cases (6 sigma: +- 0.0103)."""
    num = 20_000
    logits = torch.zeros(num, 16)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(num)]
    positions = np.full(num, 9)
    base = sample_tokens(logits, params, positions)
    others = [
        sample_tokens(logits, params, positions, stream=Stream.DRAFT),
        sample_tokens(logits, params, positions, lane=1),
        sample_tokens(logits, params, positions + 1),
        sample_tokens(logits, params[1:] + params[:1], positions),
    ]
    for other in others:
        assert abs(float((base == other).float().mean()) - 1 / 16) < 0.0103
    assert torch.equal(base, sample_tokens(logits, params, positions))


def test_truncation_does_not_change_which_noise_a_token_gets() -> None:
    """Truncated sampling agrees with plain sampling wherever the plain token survives the cut."""
    logits = torch.randn(2000, 50, generator=torch.Generator().manual_seed(5))
    plain = [SamplingParams(temperature=1.0, seed=seed) for seed in range(2000)]
    cut = [SamplingParams(temperature=1.0, top_k=10, seed=seed) for seed in range(2000)]
    positions = np.zeros(2000, dtype=np.int64)
    free, kept = sample_tokens(logits, plain, positions), sample_tokens(logits, cut, positions)
    stays = truncate_probs(logits, cut).gather(1, free[:, None])[:, 0] > 0
    assert 500 < int(stays.sum()) < 1900
    assert torch.equal(free[stays], kept[stays])


def test_weights_need_no_scale() -> None:
    weights = torch.rand(50, 9, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weights[:, 4] = 0
    keys = np.arange(50)
    drawn = gumbel_argmax(weights.log(), keys)
    assert torch.equal(drawn, gumbel_argmax((weights * 1e-3).log(), keys))
    assert (drawn != 4).all()
    assert gumbel_argmax(torch.full((1, 3), -INF), keys[:1]).tolist() == [-1]


def test_no_rows() -> None:
    assert sample_tokens(torch.zeros(0, 5), [], np.zeros(0, dtype=np.int64)).tolist() == []
    assert truncate_probs(torch.zeros(0, 5), []).shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num", [1, 2, 5, 40])
def test_top_tokens_are_what_forbidding_one_after_the_other_gives(num: int, dtype: torch.dtype) -> None:
    """Greedy and drawn rows, with ties (bfloat16 has many): the sure ones are draws of ever smaller rows."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 2, (24, 40)).astype(np.float32)).to(dtype)
    logits[:6] = (logits[:6] * 2).round() / 2
    params = [SamplingParams(temperature=(0.0, 0.7, 1.5)[i % 3], seed=i) for i in range(24)]
    positions = np.arange(24) + 5
    tokens, num_sure = top_tokens(logits, params, positions, num)
    assert tokens.shape == (24, num)
    left, seen = logits.clone(), 0
    for place in range(num):
        rows = np.flatnonzero(num_sure.numpy() > place)
        drawn = sample_tokens(left, params, positions)
        assert tokens[rows, place].tolist() == drawn[rows].tolist()
        left[torch.arange(24), drawn] = -INF
        seen += rows.size
    assert seen >= 24 * (num - 2)


def test_top_tokens_of_a_row_that_offers_nothing() -> None:
    logits = torch.tensor([[-INF] * 3, [NAN, 1.0, 2.0], [INF, 0.0, 1.0], [0.0, -INF, 1.0]])
    _, num_sure = top_tokens(logits, [SamplingParams()] * 4, np.zeros(4, np.int64), 3)
    assert num_sure.tolist() == [0, 0, 0, 2]
