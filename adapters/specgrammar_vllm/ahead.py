"""Rows that are filled while the engine launches its forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

Job = Callable[[], None]


class FillThreads:
    """Threads that work off a step's jobs from when the step is scheduled until its rows are asked for.

    Whoever asks for the rows helps, so that nobody waits for a thread that has not begun.
    """

    def __init__(self, num_threads: int) -> None:
        """Start nothing yet.

        Args:
            num_threads: beside the caller's; 0 leaves all work to `finish`.
        """
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, "specgrammar-vllm") if num_threads else None

    def start(self, jobs: Iterable[Job], *, aside: bool) -> Callable[[], None]:
        """Begin with jobs that do not raise; returns what finishes them, to be called once.

        Args:
            jobs: independent of each other.
            aside: whether they are worth handing over.
        """
        left = deque(jobs)

        def work() -> None:
            while left:
                try:
                    job = left.popleft()
                except IndexError:
                    return  # another thread was faster
                job()

        others: list[Future[None]] = []
        if self._pool is not None and aside:
            others = [self._pool.submit(work) for _ in range(min(self._num_threads, len(left)))]

        def finish() -> None:
            work()
            for other in others:
                if not other.cancel():
                    other.result()

        return finish

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
