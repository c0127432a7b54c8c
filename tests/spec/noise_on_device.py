"""A kernel that does nothing but make noise."""

from __future__ import annotations

import torch
import triton.language as tl

from specgrammar.spec.noise_kernels import gumbel, mix64, noise_key, uniform
from specgrammar.trees.jit import jit


@jit
def _noise_kernel(words_ptr: tl.tensor, integers_ptr: tl.tensor, numbers_ptr: tl.tensor) -> None:
    bits, seed = tl.load(words_ptr), tl.load(words_ptr + 1)
    word, position = tl.load(words_ptr + 2), tl.load(words_ptr + 3)
    key = noise_key(seed, word + 1, position)
    tl.store(integers_ptr, mix64(bits))
    tl.store(integers_ptr + 1, key)
    tl.store(numbers_ptr, uniform(bits))
    tl.store(numbers_ptr + 1, gumbel(key, position))


def noise_of_words(bits: int, seed: int, word: int, position: int) -> tuple[int, int, float, float]:
    """`mix64(bits)`, the key of (seed, word, position), `uniform(bits)`, the noise of (key, token position)."""
    words = torch.tensor([bits, seed, word, position])
    integers, numbers = torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.float64)
    _noise_kernel[(1,)](words, integers, numbers)
    return int(integers[0]), int(integers[1]), float(numbers[0]), float(numbers[1])
