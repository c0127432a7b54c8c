"""Threads that walk requests' trees side by side, as many as measurement says pay.

How many threads a step gets follows from what steps of about its size took on this machine with this backend:
each number of threads is tried a few times in turn, then the best is used, and the others once in a while
again. Results do not depend on it: rows may lie elsewhere in memory, but each node has the same row and status.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from specgrammar.native.pool import NativePool

_NUM_PROBES = 16
_NUM_TRIES = 3
"""Steps of a size with each number of threads before one is chosen: one that was disturbed does not count."""
_MEMORY = 9
"""Steps of a size and a number of threads whose median counts."""
_LOOK_AGAIN = 5
"""Steps of a size until it is looked at which number is the best: each step waits for the answer."""
_TRY_AGAIN = 100
"""Steps of a size until another number is tried again: the machine may have become busier, or less so."""
_TRY_EARLY = 10, 20, 40, 80
"""Steps at which that is done for the first times, as the first choice rests on little."""


class FillWorkers:
    """A pool of threads for native code, and the measurements that decide how many of them a step uses.

    Attributes:
        max_threads: most threads, the caller's among them; 1 where there is no native code.
    """

    def __init__(self, max_threads: int | None = None) -> None:
        """Start the pool and measure what a hand-over costs.

        Args:
            max_threads: most threads; by default one per core that may be used.
        """
        self._pool = NativePool(max_threads or _num_cores())
        self.max_threads: int = self._pool.num_threads
        self._numbers = _powers_of_two(self.max_threads)
        self._handover_s = self._measure_handover()
        self._sizes: dict[tuple[str, int], _Size] = {}

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:
        """How many to use for a step of `num_nodes`: the best known, or one that is to be tried.

        Args:
            num_nodes: what the work grows with, nodes or other units.
            kind: what the work is; kinds are measured apart.

        A power of two, or all that there are; less than twice as many as could pay if handing over work were
        all that sharing it costs.
        """
        if self.max_threads == 1:
            return 1
        size = self._size(num_nodes, kind)
        if size.choice:
            return size.choice
        alone = size.seconds_per_node(1) * num_nodes
        # At least one, also where a clock runs backwards and says that work took less than no time.
        could_pay = max(1, 1 + int(alone / (2 * self._handover_s))) if size.tried(1) else 1
        return size.choose([threads for threads in self._numbers if threads < 2 * could_pay])

    def rouse(self, num_nodes: int, kind: str = "walk") -> int:
        """Wake the threads that `run` will use while the caller prepares what it will run; returns how many.

        Args:
            num_nodes: as in `num_threads`.
            kind: likewise.
        """
        if (num_threads := self.num_threads(num_nodes, kind)) > 1:
            self._pool.rouse(num_threads)
        return num_threads

    def run(
        self,
        work: Callable[[int, int | None], int],
        num_nodes: int,
        kind: str = "walk",
        num_threads: int | None = None,
    ) -> None:
        """Call `work` with a number of threads and the pool that has them; learn from how long it took.

        Args:
            work: returns for how many nodes there was something to do. Steps of a size differ in that by a
                factor of three, and what one took would tell nothing about another.
            num_nodes: as in `num_threads`.
            kind: likewise.
            num_threads: what `rouse` has returned; None to ask now.
        """
        if num_threads is None:
            num_threads = self.num_threads(num_nodes, kind)
        begin = time.perf_counter()
        num_done = work(num_threads, self._pool.handle)
        self._size(num_nodes, kind).learn(num_threads, (time.perf_counter() - begin) / max(1, num_done))

    def _size(self, num_nodes: int, kind: str = "walk") -> _Size:
        key = kind, num_nodes.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size()
        return self._sizes[key]

    def _measure_handover(self) -> float:
        """Median seconds from waking another thread for nothing to having it done."""
        spent = []
        for _ in range(_NUM_PROBES if self.max_threads > 1 else 0):
            begin = time.perf_counter()
            self._pool.wake(2)
            spent.append(time.perf_counter() - begin)
        return median(spent) if spent else 0.0


class _Size:
    """What steps of about one size took: the last wall seconds per node by number of threads.

    Attributes:
        choice: what was chosen and holds for this step, too; 0 where that is to be looked at.
    """

    def __init__(self) -> None:
        self.choice: int = 0
        self._spent: dict[int, deque[float]] = {}
        self._num_steps = 0
        self._num_trials = self._chosen = self._tried_again = 0

    def tried(self, num_threads: int) -> bool:
        return num_threads in self._spent

    def seconds_per_node(self, num_threads: int) -> float:
        return median(spent) if (spent := self._spent.get(num_threads)) else 0.0

    def learn(self, num_threads: int, seconds_per_node: float) -> None:
        self._spent.setdefault(num_threads, deque(maxlen=_MEMORY)).append(seconds_per_node)
        self._num_steps += 1
        if not self._num_steps % _LOOK_AGAIN:
            self.choice = 0

    def choose(self, candidates: Sequence[int]) -> int:
        """One that was not tried often enough, else the fastest; now and then one of the others is tried again.

        So is one that seems the fastest of a sudden: what it took was measured when the machine may have been
        less busy, or the caches warmer, than for the one in use.
        """
        num_tries = {threads: len(self._spent.get(threads, ())) for threads in candidates}
        least = min(candidates, key=num_tries.__getitem__)
        if num_tries[least] < _NUM_TRIES:
            return least
        best = min(candidates, key=self.seconds_per_node)
        others = [threads for threads in candidates if threads != best]
        if others and (self._num_steps in _TRY_EARLY or not self._num_steps % _TRY_AGAIN):
            self._num_trials += 1
            return self._try_again(others[self._num_trials % len(others)])
        if best not in (self._chosen or best, self._tried_again):
            return self._try_again(best)
        self._chosen = self.choice = best
        self._tried_again = 0
        return best

    def _try_again(self, num_threads: int) -> int:
        self._tried_again = num_threads
        self._spent[num_threads] = deque(maxlen=_MEMORY)  # another thread may be learning from the one before
        return num_threads


def _powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ..., and `most`."""
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def _num_cores() -> int:
    """Cores that this process may use, where the system says; else all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
