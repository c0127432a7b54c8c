"""Keyed noise: the known hash, the right laws, and no link between the noise of neighbouring events.

The statistical tests run on fixed keys, so they are deterministic; a level of 1e-6 says what luck would be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from specgrammar.spec.noise import GAMMA, Stream, gumbel, mix64, noise_keys, uniform

LEVEL = 1e-6
NUM = 40_000
ONE = np.ones(NUM, dtype=np.int64)
COUNT = np.arange(NUM, dtype=np.int64)


def token_uniform(keys: NDArray[np.int64], token: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """The uniform number behind the Gumbel noise of (key, token) pairs."""
    tokens = np.broadcast_to(np.asarray(token, dtype=np.int64), keys.shape).copy()
    noise = gumbel(torch.from_numpy(keys), torch.from_numpy(tokens)).numpy()
    numbers: NDArray[np.float64] = np.exp(-np.exp(-noise))
    return numbers


def test_hash_is_splitmix64() -> None:
    """The first outputs of SplitMix64 seeded with 1234567, as published with its reference code."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    words = 1234567 + (np.arange(5, dtype=np.int64) + 1) * GAMMA
    assert mix64(words).astype(np.uint64).tolist() == expected
    assert mix64(torch.from_numpy(words)).numpy().astype(np.uint64).tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_host_and_tensor_agree(words: list[int]) -> None:
    array = np.array(words, dtype=np.int64)
    before = array.copy()
    assert (mix64(array) == mix64(torch.from_numpy(array)).numpy()).all()
    assert (array == before).all()


def test_hash_avalanches() -> None:
    """Each input bit flips each output bit with a probability of 1/2 (8,192 words: 0.5 +- 0.033 is 6 sigma)."""
    words = mix64(np.arange(8192, dtype=np.int64))
    for bit in range(64):
        flipped = mix64(words) ^ mix64(words ^ np.int64(-(2**63) if bit == 63 else 1 << bit))
        share = (flipped[:, None] >> np.arange(64) & 1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 0.034, bit


def test_keys_are_the_same_alone_and_in_a_batch() -> None:
    seeds = np.array([0, 7, 2**63 - 1, 7], dtype=np.int64)
    positions = np.array([0, 3, 2**40, 4], dtype=np.int64)
    together = noise_keys(seeds, positions, Stream.DRAFT, 2)
    alone = [
        noise_keys(seeds[i : i + 1], positions[i : i + 1], Stream.DRAFT, np.array([2]))[0] for i in range(4)
    ]
    assert together.tolist() == alone
    assert len(set(alone)) == 4


def test_every_word_of_a_key_matters() -> None:
    """40,000 seeds, positions and lanes of every stream have 480,000 different keys."""
    keys = []
    for stream in Stream:
        keys.append(noise_keys(COUNT, ONE, stream))
        keys.append(noise_keys(ONE, COUNT + 2, stream))
        keys.append(noise_keys(ONE, ONE, stream, COUNT + 1))
    assert len(np.unique(np.concatenate(keys))) == len(Stream) * 3 * NUM


AXES: dict[str, Callable[[], NDArray[np.float64]]] = {
    "seeds": lambda: token_uniform(noise_keys(COUNT, ONE, Stream.TARGET), 3),
    "positions": lambda: token_uniform(noise_keys(ONE, COUNT, Stream.TARGET), 3),
    "tokens": lambda: token_uniform(noise_keys(ONE, ONE, Stream.TARGET), COUNT),
    "lanes": lambda: token_uniform(noise_keys(ONE, ONE, Stream.DRAFT, COUNT), 3),
    "accept": lambda: uniform(noise_keys(COUNT, ONE, Stream.ACCEPT)),
}


@pytest.mark.parametrize("axis", AXES)
def test_uniform_and_independent_along(axis: str) -> None:
    """KS against the uniform law; a 16 x 16 table of neighbours (lags 1, 2, 7) against independence.

    With 40,000 numbers a correlation of 0.08 between neighbours would be found with a power above 0.999.
    """
    numbers = AXES[axis]()
    assert stats.kstest(numbers, "uniform").pvalue > LEVEL
    for lag in (1, 2, 7):
        assert independence(numbers[:-lag], numbers[lag:]) > LEVEL, lag


def test_independent_across_streams_and_words() -> None:
    """The same event under another stream, lane, seed or position, or another token, has unrelated noise."""
    base = token_uniform(noise_keys(COUNT, COUNT, Stream.TARGET), 3)
    others = {
        "stream": token_uniform(noise_keys(COUNT, COUNT, Stream.DRAFT), 3),
        "residual": token_uniform(noise_keys(COUNT, COUNT, Stream.RESIDUAL), 3),
        "accept": uniform(noise_keys(COUNT, COUNT, Stream.ACCEPT)),
        "lane": token_uniform(noise_keys(COUNT, COUNT, Stream.TARGET, 1), 3),
        "seed": token_uniform(noise_keys(COUNT + 1, COUNT, Stream.TARGET), 3),
        "position": token_uniform(noise_keys(COUNT, COUNT + 1, Stream.TARGET), 3),
        "token": token_uniform(noise_keys(COUNT, COUNT, Stream.TARGET), 4),
        "swapped": token_uniform(noise_keys(COUNT, COUNT[::-1].copy(), Stream.TARGET), 3),
    }
    for name, numbers in others.items():
        assert independence(base, numbers) > LEVEL, name


def test_gumbel_law_and_range() -> None:
    keys = torch.from_numpy(noise_keys(ONE[:1], ONE[:1], Stream.TARGET))
    noise = gumbel(keys, torch.arange(500_000))
    assert noise.dtype == torch.float64
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > LEVEL
    assert noise.isfinite().all()
    assert ((noise > -3.7) & (noise < 36.8)).all()


def test_uniform_never_reaches_its_ends() -> None:
    numbers = uniform(np.array([0, -1], dtype=np.int64))
    assert 0 < numbers[0] < 1e-15
    assert 1 - 1e-15 < numbers[1] < 1


def independence(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """p-value of chi-square for two samples being uniform and independent, in 16 x 16 cells."""
    table = np.histogram2d(first, second, bins=16, range=[[0, 1], [0, 1]])[0]
    return float(stats.chisquare(table.ravel()).pvalue)
