"""Is an output's law the one it should be? Chi-square over the outputs of thousands of requests.

Outputs of up to `LENGTH` tokens of `NUM` requests, which differ in their seed alone, are compared with the
exact law at `LEVEL`. All draws are keyed or seeded, so a result never changes from run to run. The power is
checked by `test_power`: an effect of w = 0.1 (Cohen's w, the root of the sum of (p' - p)^2 / p; he calls 0.1
small) goes unnoticed with a probability below 0.001.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from specgrammar.spec.sampler import truncate_probs
from specgrammar.spec.sampling import SamplingParams
from tests.spec.toy import VOCAB, Drafts, Propose, Toy

NUM = 20_000
LENGTH = 3
LEVEL = 1e-6
TOY = Toy.make(10)

LAWS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.4, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.3),
    SamplingParams(temperature=1.2, top_k=3, top_p=0.9, min_p=0.2),
]

# Three children of the root, two of the first and one of the second, one more below; then padding.
PARENTS = np.array([-1, 0, 0, 0, 1, 1, 2, 4, -1])
ONE_LEVEL = np.array([-1, 0, 0])


@cache
def requests_of(law: SamplingParams, num: int = NUM) -> tuple[SamplingParams, ...]:
    """The law with the seeds `0 .. num - 1`."""
    return tuple(SamplingParams(law.temperature, law.top_k, law.top_p, law.min_p, seed) for seed in range(num))


def p_value(outputs: NDArray[np.int64], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square of outputs `[num, length]` (-1 behind the end) against their law; 0 if one is impossible."""
    radix = (VOCAB + 1) ** np.arange(outputs.shape[1])
    codes, counts = np.unique((outputs + 1) @ radix, return_counts=True)
    seen = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    observed, expected = [0.0], [0.0]
    for output, p in law.items():
        padded = np.array([*output, *[-1] * (outputs.shape[1] - len(output))])
        count, mean = seen.pop(int((padded + 1) @ radix), 0), p * len(outputs)
        if mean < 5:  # too few for chi-square: all of these are one cell
            observed[0], expected[0] = observed[0] + count, expected[0] + mean
        else:
            observed.append(count)
            expected.append(mean)
    if seen:
        return 0.0
    cells = np.array([observed, expected])[:, np.array(expected) > 0]
    return float(stats.chisquare(cells[0], cells[1] * cells[0].sum() / cells[1].sum()).pvalue)


def point_drafts(seed: int) -> Propose:
    """Any tokens, equal siblings and dead nodes among them, half of them the drafter's favourite."""
    rng = np.random.default_rng(seed)

    def propose(last: NDArray[np.int64], *_: NDArray[np.int64]) -> Drafts:
        tokens = rng.integers(0, VOCAB, (len(last), len(PARENTS)))
        tokens[:, 0] = last
        for node, parent in enumerate(PARENTS[1:-1], start=1):
            favourite = TOY.draft[tokens[:, parent], :VOCAB].argmax(axis=1)
            tokens[:, node] = np.where(rng.random(len(last)) < 0.5, favourite, tokens[:, node])
        tokens[:, PARENTS.size - 1] = -1
        return Drafts(tokens, np.tile(PARENTS, (len(last), 1)))

    return propose


def sampled_drafts(seed: int, q: NDArray[np.float32], parents: NDArray[np.int64] = PARENTS) -> Propose:
    """Children drawn independently from the row of q that belongs to their parent's token."""
    rng = np.random.default_rng(seed)
    upto = q.astype(np.float64).cumsum(axis=1)

    def propose(last: NDArray[np.int64], *_: NDArray[np.int64]) -> Drafts:
        tokens = np.full((len(last), len(parents)), -1)
        rows = np.full_like(tokens, -1)
        tokens[:, 0] = last
        for node, parent in enumerate(parents):
            if parent >= 0:
                rows[:, node] = tokens[:, parent]
                points = rng.random((len(last), 1)) * upto[rows[:, node], -1:]
                tokens[:, node] = (points >= upto[rows[:, node]]).sum(axis=1)
        return Drafts(tokens, np.tile(parents, (len(last), 1)), rows, q)

    return propose


def draft_q(law: SamplingParams, *, masked: bool) -> NDArray[np.float32]:
    """The drafter's distributions, with the sampling parameters applied; narrower than the target's columns."""
    logits = np.where(TOY.legal, TOY.draft, -np.inf) if masked else TOY.draft
    return truncate_probs(torch.from_numpy(logits[:, :VOCAB].astype(np.float32)), [law] * VOCAB).numpy()


UNMASKED_Q = draft_q(SamplingParams(temperature=1.0), masked=False)
