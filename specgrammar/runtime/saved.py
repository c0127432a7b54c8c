"""`Saved`: what steps were shorter by than the same steps of another run, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NUM_RESAMPLES = 1000
_ENDS_PERCENT = (2.5, 97.5)


@dataclass(frozen=True)
class Saved:
    """Negative where steps became longer.

    Attributes:
        ms_per_step: the median over all pairs of the same step of the same repeat.
        interval_ms: where 95 % of the medians lie that other runs of this kind would give (bootstrap): repeats
            are drawn anew, and of each its steps, so that what drifts from one repeat to the next counts. Of
            one repeat nothing is known of that, and the interval is too short.
        ms_by_repeat: the median of each repeat by itself.
        num_pairs: how many pairs.
    """

    ms_per_step: float
    interval_ms: tuple[float, float]
    ms_by_repeat: tuple[float, ...]
    num_pairs: int

    @classmethod
    def of(cls, inline: Sequence[float], ours: Sequence[float], num_repeats: int) -> Saved:
        """Compare step for step.

        Args:
            inline: each step's milliseconds, repeat after repeat.
            ours: the same of the other run.
            num_repeats: in how many equal parts both are to be cut.
        """
        pairs = (np.array(inline) - np.array(ours)).reshape(num_repeats, -1)
        num_steps = pairs.shape[1]
        random = np.random.default_rng(0)  # the same files give the same numbers
        medians = []
        for _ in range(_NUM_RESAMPLES):
            repeats = random.integers(num_repeats, size=num_repeats)
            steps = random.integers(num_steps, size=(num_repeats, num_steps))
            medians.append(np.median(pairs[repeats[:, None], steps]))
        low, high = np.percentile(medians, _ENDS_PERCENT).tolist()
        return cls(float(np.median(pairs)), (low, high), tuple(np.median(pairs, axis=1).tolist()), pairs.size)
