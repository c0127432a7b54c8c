"""Medians of several ways to do one thing, measured in turns in the same run."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.columns import Step

_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16)


def interleaved_medians(
    steps: Mapping[str, Step], budget: float, min_rounds: int = 3, max_rounds: int = 25
) -> dict[str, float]:
    """The median seconds of each step.

    A round makes every step once, in an order of its own: what disturbs the machine for a while disturbs all of
    them, and none always runs behind the same one, whose memory it would find in the caches, or pushed out of
    them. One round is made before, to warm up.

    Args:
        steps: by name; a step that returns a float says itself how long it took.
        budget: seconds for all rounds together; `min_rounds` are made in any case.
        min_rounds: at least this many.
        max_rounds: at most this many.
    """
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    gc.collect()
    begin = time.perf_counter()
    for round_ in range(-1, max_rounds):
        if round_ >= min_rounds and time.perf_counter() - begin > budget:
            break
        for name in order.sample(names, len(names)):
            measured = _timed(steps[name])
            if round_ >= 0:
                seconds[name].append(measured)
    return {name: statistics.median(measured) for name, measured in seconds.items()}


def one_after_the_other(steps: Sequence[Step]) -> Callable[[], float]:
    """All steps as one; it returns the mean seconds of a step."""
    return lambda: sum(map(_timed, steps)) / len(steps)


def _timed(step: Step) -> float:
    """What a step takes; before it malloc sorts what the step before freed, as it does at its next calls."""
    for size in _SIZES:
        bytes(size)
    begin = time.perf_counter()
    result = step()
    return result if isinstance(result, float) else time.perf_counter() - begin
