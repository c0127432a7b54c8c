"""The keyed noise of `noise` inside Triton kernels, bit by bit but for the logarithm's last place.

int64 stands for SplitMix64's uint64, as there: products wrap, and shifts to the right are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specgrammar.spec.noise import GAMMA, LANES, MULTIPLIER_1, MULTIPLIER_2, Stream
from specgrammar.trees.jit import HAS_TRITON, jit

if TYPE_CHECKING or HAS_TRITON:
    import triton.language as tl

    _FACTOR_1 = tl.constexpr(MULTIPLIER_1)
    _FACTOR_2 = tl.constexpr(MULTIPLIER_2)
    _STEP = tl.constexpr(GAMMA)
    # A key's second word, one more than (stream, lane) for lane 0.
    TARGET = tl.constexpr(Stream.TARGET * LANES + 1)
    ACCEPT = tl.constexpr(Stream.ACCEPT * LANES + 1)
    RESIDUAL = tl.constexpr(Stream.RESIDUAL * LANES + 1)


@jit
def mix64(words: tl.tensor) -> Any:
    """`noise.mix64`."""
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * _FACTOR_1
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * _FACTOR_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


@jit
def noise_key(seed: tl.tensor, word: tl.tensor, position: tl.tensor) -> Any:
    """`noise.noise_keys`; int64, `word` is `TARGET`, `RESIDUAL` or `ACCEPT + lane`."""
    state = mix64(mix64(seed) + (tl.zeros_like(seed) + word) * _STEP)
    return mix64(state + (position + 1) * _STEP)


@jit
def uniform(bits: tl.tensor) -> Any:
    """`noise.uniform`."""
    return (((bits >> 12) & 0xFFFFFFFFFFFFF).to(tl.float64) + 0.5) * 2.220446049250313e-16


@jit
def gumbel(key: tl.tensor, token: tl.tensor) -> Any:
    """`noise.gumbel`; float64."""
    return -tl.log(-tl.log(uniform(mix64((token.to(tl.int64) + 1) * _STEP + key))))
