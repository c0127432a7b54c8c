"""The sampling parameters of many rows, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specgrammar.spec.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class SamplingTable:
    """The sampling parameters of many rows, one array `[rows]` per field of `SamplingParams`."""

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    seed: NDArray[np.int64]

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> SamplingTable:
        """The table of `params`, row by row."""
        return cls(
            temperature=np.array([p.temperature for p in params], dtype=np.float64),
            top_k=np.array([p.top_k for p in params], dtype=np.int64),
            top_p=np.array([p.top_p for p in params], dtype=np.float64),
            min_p=np.array([p.min_p for p in params], dtype=np.float64),
            seed=np.array([p.seed for p in params], dtype=np.int64),
        )

    def take(self, rows: NDArray[np.int64] | slice) -> SamplingTable:
        """The table of `rows`, in their order."""
        return SamplingTable(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.seed[rows]
        )

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """Where the argmax is taken."""
        greedy: NDArray[np.bool_] = self.temperature == 0
        return greedy
