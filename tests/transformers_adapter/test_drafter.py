"""The drafter's chains continue what is committed, whatever became of its earlier drafts."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from specgrammar.errors import ModelError
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.sampler import sample_tokens, truncate_probs
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar_transformers import TransformersDrafter
from tests.transformers_adapter.tiny import (
    MAX_LENGTH,
    VOCAB,
    InFlight,
    batch_of,
    drafted,
    greedy_tokens,
    plain_logits,
    tiny_model,
    view,
)


@pytest.mark.parametrize(
    "kind, make_device",
    [("llama", InlineDevice), ("gpt2", InlineDevice), ("llama", CpuStream), ("llama", DelayedDevice)],
)
@pytest.mark.parametrize("seed", range(3))
def test_drafts_are_the_greedy_continuation_after_any_history(
    kind: str, make_device: Callable[[], Device], seed: int
) -> None:
    """Accepted in part, rejected, ignored for some steps, behind by many tokens, forgotten and new again."""
    rng = np.random.default_rng(seed)
    model = tiny_model(kind, seed=seed)
    drafter = TransformersDrafter(model, VOCAB, 3, make_device())
    sequences: dict[str, list[int]] = {}
    news: dict[str, list[int]] = {}
    for step in range(15):
        if len(sequences) < 3 and (not sequences or rng.random() < 0.5):
            sequences[f"request {step}"] = rng.integers(VOCAB, size=int(rng.integers(1, 60))).tolist()
        names = [str(name) for name in rng.permutation(sorted(sequences))]
        names = names[: int(rng.integers(1, len(names) + 1))]
        count = int(rng.integers(1, 5))
        batch = batch_of(step, sequences, names)
        if rng.random() < 0.5:  # what the last step committed is not known to the host
            in_flight = {name: tokens for name, tokens in news.items() if name in names and rng.random() < 0.8}
            known = {
                name: tokens[: len(tokens) - len(in_flight.get(name, ()))] for name, tokens in sequences.items()
            }
            unresolved = InFlight([in_flight.get(name) for name in names])
            batch = replace(batch_of(step, known, names), unresolved=unresolved)
        drafts, q = drafted(drafter, batch, count, sampled=False)
        assert q is None
        assert drafts.shape == (len(names), count)
        assert drafts.dtype == np.int64
        for row, name in enumerate(names):
            assert drafts[row].tolist() == greedy_tokens(model, sequences[name], count)
            kept = int(rng.integers(count + 1))
            extra = int(rng.choice([1, 1, 1, 50]))
            news[name] = [*drafts[row, :kept].tolist(), *rng.integers(VOCAB, size=extra).tolist()]
            sequences[name] = [*sequences[name], *news[name]]
        news = {name: tokens for name, tokens in news.items() if name in names}
        if rng.random() < 0.2:
            gone = str(rng.choice(sorted(sequences)))
            drafter.forget(gone)
            del sequences[gone]
            news.pop(gone, None)


def test_a_request_that_is_forgotten_may_come_back_with_other_tokens() -> None:
    model = tiny_model()
    drafter = TransformersDrafter(model, VOCAB, max_batch_size=1)
    for tokens in ([1, 2, 3], [9, 8]):
        drafts, _ = drafted(drafter, batch_of(0, {"a": tokens}, ["a"]), 3, sampled=False)
        assert drafts[0].tolist() == greedy_tokens(model, tokens, 3)
        drafter.forget("a")
    drafter.forget("never seen")


def test_q_is_the_truncated_law_of_each_position() -> None:
    model = tiny_model()
    drafter = TransformersDrafter(model, VOCAB, max_batch_size=3)
    params = [
        SamplingParams(temperature=0.7, top_k=5, seed=1),
        SamplingParams(),
        SamplingParams(temperature=1.5, top_p=0.8, min_p=0.02, seed=2),
    ]
    sequences = [[1, 2], [3, 4, 5], [6]]
    views = tuple(view(str(i), tokens, params[i]) for i, tokens in enumerate(sequences))
    drafts, q = drafted(drafter, DecodeBatch(0, views), 3, sampled=True)
    assert q is not None
    assert q.shape == (3, 3, VOCAB)
    assert q.dtype == torch.float32
    for row, tokens in enumerate(sequences):
        for column in range(3):
            logits = plain_logits(model, [*tokens, *drafts[row, :column].tolist()])
            expected = truncate_probs(logits[None], [params[row]])[0]
            torch.testing.assert_close(q[row, column], expected, atol=1e-5, rtol=1e-4)
            assert q[row, column, drafts[row, column]] > 0
    assert drafts[1].tolist() == greedy_tokens(model, sequences[1], 3)


def chi_square(counts: NDArray[np.float64], law: NDArray[np.float64]) -> float:
    """The p-value of counts under expected counts; tokens that are expected less than 5 times are one class."""
    common = law >= 5
    observed, expected = counts[common], law[common]
    observed[0] += counts[~common].sum()
    expected[0] += law[~common].sum()
    return float(chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def test_tokens_are_drawn_from_q() -> None:
    """3,200 draws of two positions against the sum of the stated rows, alpha 1e-4.

    At this size the test rejects a law that is a third hotter, as the last line shows.
    """
    model = tiny_model()
    drafter = TransformersDrafter(model, VOCAB, max_batch_size=64)
    counts, law = np.zeros((2, VOCAB)), np.zeros((2, VOCAB))
    for first_seed in range(0, 3200, 64):
        seeds = range(first_seed, first_seed + 64)
        views = tuple(view(f"{seed}", [5, 6, 7], SamplingParams(2.0, seed=seed)) for seed in seeds)
        drafts, q = drafted(drafter, DecodeBatch(0, views), 2, sampled=True)
        assert q is not None
        for column in range(2):
            counts[column] += np.bincount(drafts[:, column], minlength=VOCAB)
        law += q.double().sum(dim=0).numpy()
        for seed in seeds:
            drafter.forget(f"{seed}")
    assert chi_square(counts[0], law[0]) > 1e-4
    assert chi_square(counts[1], law[1]) > 1e-4
    hotter = truncate_probs(plain_logits(model, [5, 6, 7])[None], [SamplingParams(2.7)])[0].double().numpy()
    assert chi_square(counts[0], 3200 * hotter) < 1e-4


def test_the_same_seed_draws_the_same_tokens_in_any_batch() -> None:
    model = tiny_model()
    params = SamplingParams(1.3, seed=77)
    alone, _ = drafted(
        TransformersDrafter(model, VOCAB, 1), DecodeBatch(0, (view("a", [5, 6], params),)), 4, sampled=True
    )
    others = (view("b", [1], SamplingParams(1.0, seed=3)), view("a", [5, 6], params))
    together, _ = drafted(TransformersDrafter(model, VOCAB, 2), DecodeBatch(9, others), 4, sampled=True)
    assert together[1].tolist() == alone[0].tolist()


def test_the_noise_is_not_the_targets() -> None:
    """With the target's noise an equal model would draw the target's very tokens; rejection would be biased."""
    model = tiny_model()
    views = tuple(view(f"{seed}", [5, 6], SamplingParams(2.0, seed=seed)) for seed in range(64))
    drafts, _ = drafted(TransformersDrafter(model, VOCAB, 64), DecodeBatch(0, views), 1, sampled=True)
    logits = plain_logits(model, [5, 6]).expand(64, VOCAB)
    targets = sample_tokens(logits, [request.sampling for request in views], np.full(64, 2))
    assert np.count_nonzero(drafts[:, 0] == targets.numpy()) < 32


def test_columns_above_the_vocabulary_are_never_drafted() -> None:
    model = tiny_model()
    drafter = TransformersDrafter(model, 10, max_batch_size=1)
    drafts, q = drafted(drafter, batch_of(0, {"a": [1, 2]}, ["a"]), 8, sampled=True)
    assert q is not None
    assert drafter.vocab_size == 10
    assert q.shape == (1, 8, 10)
    assert drafts.max() < 10


def test_beyond_its_context_it_states_a_certain_proposal() -> None:
    model = tiny_model()
    drafter = TransformersDrafter(model, VOCAB, max_batch_size=2)
    sequences = {"full": [3] * (MAX_LENGTH - 1), "short": [1, 2]}
    drafts, q = drafted(drafter, batch_of(0, sequences, ["full", "short"]), 2, sampled=True)
    assert q is not None
    assert drafts[0].tolist() == [3, 3]
    assert q[0].sum() == 2
    assert q[0, :, 3].tolist() == [1, 1]
    assert drafts[1].tolist() == greedy_tokens(model, sequences["short"], 2)


def test_a_request_whose_logits_are_nan_has_no_draft_and_leaves_the_others_alone() -> None:
    model = tiny_model()
    warm = SamplingParams(1.3, seed=3)
    whole = (view("good", [5, 6], warm),)
    expected, _ = drafted(TransformersDrafter(model, VOCAB, 1), DecodeBatch(0, whole), 3, sampled=True)
    broken = next(token for token in range(VOCAB) if token not in {5, 6, *expected[0].tolist()})
    with torch.no_grad():
        next(model.get_input_embeddings().parameters())[broken] = torch.nan
    drafter = TransformersDrafter(model, VOCAB, 2)
    views = DecodeBatch(0, (view("lost", [5, broken], warm), view("good", [5, 6], warm)))
    drafts, q = drafted(drafter, views, 3, sampled=True)
    assert q is not None
    assert drafts[0, 0] == -1
    assert q[0, 0].sum() == 0
    assert drafts[1].tolist() == expected[0].tolist()


def test_a_draft_that_failed_is_made_anew() -> None:
    model = tiny_model()
    drafter = TransformersDrafter(model, VOCAB, 1, CpuStream())
    num_forwards = 0

    def fail_third(*_: object) -> None:
        nonlocal num_forwards
        num_forwards += 1
        if num_forwards == 3:
            raise MemoryError("no room")

    model.base_model.register_forward_pre_hook(fail_third)
    batch = batch_of(0, {"a": [1, 2, 3]}, ["a"])
    with pytest.raises(MemoryError, match="no room"):
        drafted(drafter, batch, 4, sampled=False)
    drafts, _ = drafted(drafter, batch, 4, sampled=False)
    assert drafts[0].tolist() == greedy_tokens(model, [1, 2, 3], 4)


def test_more_requests_than_rows_are_refused() -> None:
    drafter = TransformersDrafter(tiny_model(), VOCAB, max_batch_size=1)
    with pytest.raises(ModelError, match="holds 1 requests and all are taken"):
        drafted(drafter, batch_of(0, {"a": [1], "b": [2]}, ["a", "b"]), 1, sampled=False)
