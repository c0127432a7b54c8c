"""Keyed noise: every random number is a pure function of (seed, stream, position, lane, token).

There is no generator and so no state: whoever needs the number of one event computes it, alone or in a batch,
on the host or on a device, in any order, and gets the same bits. This is what makes a request's tokens
independent of its batch, of the algorithm that drafts for it and of the schedule.

The hash is SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014), used
by counter: the state of a key absorbs one word after the other, each time by its finaliser `mix64`, a bijection
of 64 bits in which each input bit flips each output bit with a probability close to 1/2. The words of a key
are seed, (stream, lane) and position; token t of the key is then output t of the SplitMix64 generator that
starts there. Two's complement int64 stands for its uint64, since that is what torch can multiply everywhere.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

GAMMA = 0x9E3779B97F4A7C15 - 2**64
"""SplitMix64's increment, the odd integer next to 2**64 / golden ratio."""

MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
MULTIPLIER_2 = 0x94D049BB133111EB - 2**64
"""The odd factors of its mixing."""

LANES = 2**32
"""Lanes of a stream: each has noise of its own."""

Words = TypeVar("Words", NDArray[np.int64], torch.Tensor)


class Stream(IntEnum):
    """What a random number decides. Numbers of different streams are independent under one seed."""

    TARGET = 0
    """The target's own token at a position (exact sampling, and the bonus token behind a leaf)."""
    ACCEPT = 1
    """Whether rejection sampling takes the candidate in `lane` at a position."""
    RESIDUAL = 2
    """The token that replaces the rejected candidates at a position."""
    DRAFT = 3
    """A drafter's token at a position; `lane` numbers the siblings that are drawn independently."""


def mix64(words: Words) -> Words:
    """SplitMix64's finaliser, element by element; returns a new int64 array or tensor."""
    words = words ^ ((words >> 30) & (2**34 - 1))
    words *= MULTIPLIER_1
    words ^= (words >> 27) & (2**37 - 1)
    words *= MULTIPLIER_2
    words ^= (words >> 31) & (2**33 - 1)
    return words


def noise_keys(
    seeds: NDArray[np.int64], positions: NDArray[np.int64], stream: Stream, lanes: ArrayLike = 0
) -> NDArray[np.int64]:
    """The keys of one event per row, on the host.

    Args:
        seeds: int64 `[rows]`, each request's seed.
        positions: int64 `[rows]`, the absolute position of the token to be drawn (prompt included, from 0).
        stream: what the number decides.
        lanes: an integer in `[0, 2**32)`, or int64 `[rows]` of them: which of several at one position.

    Returns:
        int64 `[rows]`.
    """
    words = np.atleast_1d(np.asarray(lanes, dtype=np.int64)) + stream * LANES
    state = mix64(np.asarray(seeds, dtype=np.int64))
    state = mix64(state + (words + 1) * GAMMA)
    return mix64(state + (positions + 1) * GAMMA)


def uniform(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number per key, uniform in the open interval (0, 1), in steps of 2**-52; float64 `[rows]`."""
    return (((keys >> 12) & (2**52 - 1)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(keys: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise of (key, token) pairs.

    `argmax_t(log w_t + gumbel(key, t))` has the law w / sum(w), whatever the scale of w (Gumbel-max),
    and an algorithm that leaves out tokens of weight 0 gets the same answer as one that does not.

    Args:
        keys: int64, from `noise_keys`.
        tokens: int64 on the same device, of a shape that `keys` broadcasts to.

    Returns:
        float64 of the tokens' shape; finite, in (-3.6, 36.8).
    """
    bits = mix64((tokens + 1).mul_(GAMMA).add_(keys))
    uniforms = (bits >> 12).bitwise_and_(2**52 - 1).double().add_(0.5).mul_(2.0**-52)
    return uniforms.log_().neg_().log_().neg_()
