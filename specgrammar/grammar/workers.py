"""Threads that walk requests' trees side by side, as many as measurement says pay.

Only walks in native code that releases the GIL gain. How many threads a step gets follows from what was
measured on this machine with this backend in steps of about its size: seconds per node for each number of
threads that was tried, and for others what one thread needs, shared, plus what handing over work costs. Results
do not depend on it: rows may lie elsewhere in memory, but each node has the same row and status.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_NUM_PROBES = 16
_MEMORY = 0.8
"""How much of the old estimate a new step leaves."""
_FADING = 0.995
"""What a step leaves of the estimates that it did not try, so that an unlucky one is tried again some time."""


class FillWorkers:
    """A pool of threads, and the estimates that decide how many of them a step uses."""

    def __init__(self, max_threads: int | None = None) -> None:
        """Start the pool and measure what a hand-over costs.

        Args:
            max_threads: most threads, the caller's among them; by default one per core that may be used.
        """
        self.max_threads = max_threads or _num_cores()
        self._pool = ThreadPoolExecutor(max(1, self.max_threads - 1), "specgrammar-fill")
        self._handover_s = self._measure_handover()
        self._node_s: dict[tuple[int, int], float] = {}  # wall seconds per node, by size class and threads

    def num_threads(self, num_nodes: int) -> int:
        """The number that makes a step of `num_nodes` shortest; 1 before one of its size was measured."""
        size = num_nodes.bit_length()
        alone = self._node_s.get((size, 1))
        if alone is None:
            return 1

        def seconds(threads: int) -> float:
            shared = alone / threads * num_nodes + self._handover_s * (threads - 1)
            return max(shared, self._node_s.get((size, threads), 0.0) * num_nodes)

        return min(range(1, self.max_threads + 1), key=seconds)

    def run(self, jobs: Sequence[Callable[[], None]], num_nodes: int) -> None:
        """Run all jobs, the first on this thread, and learn from how long that took.

        Raises what a job raises, when all are done.
        """
        begin = time.perf_counter()
        others = [self._pool.submit(job) for job in jobs[1:]]
        try:
            jobs[0]()
        finally:
            errors = [error for future in others if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        spent = (time.perf_counter() - begin) / max(1, num_nodes)
        tried = num_nodes.bit_length(), len(jobs)
        known = self._node_s.get(tried, spent)
        for other in self._node_s:
            if other[0] == tried[0]:
                self._node_s[other] *= _FADING
        self._node_s[tried] = _MEMORY * known + (1 - _MEMORY) * spent

    def _measure_handover(self) -> float:
        """Median seconds from submitting nothing to having it done."""
        spent = []
        for _ in range(_NUM_PROBES):
            begin = time.perf_counter()
            self._pool.submit(int).result()
            spent.append(time.perf_counter() - begin)
        return sorted(spent)[_NUM_PROBES // 2]


def _num_cores() -> int:
    """Cores that this process may use, where the system says; else all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
