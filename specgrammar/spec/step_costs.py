"""What a step costs by its number of nodes, measured on the steps themselves.

So it is the cost of this machine, model and batch; nothing is set by hand. In the first steps of a batch size
budgets take turns, so that the curve has points.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from statistics import median

_TRIAL_SHARES = (1.0, 0.5, 0.25, 0.0)
"""Of the largest budget, in turns; the first steps also load code and memory, so each is seen several times."""
_NUM_TRIALS = 5
_KEPT = 32
"""Times that are kept of steps of about a size, the newest."""

Agree = Callable[[int], int]
"""Makes a number that one replica measured everybody's."""


class StepCosts:
    """Seconds of a step by its number of nodes, for one batch size."""

    def __init__(self) -> None:
        """Nothing was measured."""
        self._seconds: dict[int, list[float]] = {}

    def add(self, num_nodes: int, seconds: float) -> None:
        """One step was measured."""
        times = self._seconds.setdefault(_size_class(num_nodes), [])
        times.append(seconds)
        del times[:-_KEPT]

    def curve(self, most: int) -> list[float]:
        """Seconds of a step of 0, 1, ..., `most` nodes; never falling."""
        sizes = sorted(self._seconds)
        times = [self._seconds[size] for size in sizes]
        seconds = _never_falling([median(some) for some in times], [len(some) for some in times])
        return [_between(sizes, seconds, size) for size in range(most + 1)]


class StepTimer:
    """How long steps take, from the beginning of one to that of the next."""

    def __init__(self) -> None:
        """No step has begun."""
        self._requests: frozenset[str] = frozenset()
        self._has_new = True
        self._begin = 0.0

    def begin(self, requests: Sequence[str]) -> float | None:
        """A step of these requests begins: the seconds that the one before took.

        None where a request has joined since, whose prompt was computed between the two, and where that step
        was the first of a request: a producer reads the prompt in it. Requests that leave cost nothing.
        """
        now, before, had_new = time.perf_counter(), self._begin, self._has_new
        has_new = not self._requests.issuperset(requests)
        self._requests, self._begin, self._has_new = frozenset(requests), now, has_new
        return None if has_new or had_new else now - before


class Trials:
    """The first steps of each batch size, in which budgets take turns."""

    def __init__(self) -> None:
        """No step was tried."""
        self._num_steps: dict[int, int] = {}

    def next_share(self, bs: int) -> float | None:
        """The share of the largest budget that the next step has; None once enough were tried.

        Steps are counted, no clock is asked: replicas try alike.
        """
        step = self._num_steps.get(bs, 0)
        self._num_steps[bs] = step + 1
        is_over = step >= _NUM_TRIALS * len(_TRIAL_SHARES)
        return None if is_over else _TRIAL_SHARES[step % len(_TRIAL_SHARES)]


def _size_class(num_nodes: int) -> int:
    """Sizes with one cost: about eight to a doubling."""
    step = 1 << max(0, num_nodes.bit_length() - 4)
    return num_nodes // step * step


def _never_falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The values that never fall and are nearest, by weighted squares: neighbours that fall are joined."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight and number of values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (left, left_weight, left_count), (right, right_weight, right_count) = blocks[-2:]
            total = left_weight + right_weight
            mean = (left * left_weight + right * right_weight) / total
            blocks[-2:] = [(mean, total, left_count + right_count)]
    return [mean for mean, _, count in blocks for _ in range(count)]


def _between(sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
    """The straight line between the points beside a size; behind the last that from the first to it."""
    right = bisect_left(sizes, size)
    if right == 0:
        return seconds[0]
    left = right - 1
    if right == len(sizes):
        left, right = 0, left
    if left == right:
        return seconds[left]
    share = (size - sizes[left]) / (sizes[right] - sizes[left])
    return seconds[left] + share * (seconds[right] - seconds[left])
