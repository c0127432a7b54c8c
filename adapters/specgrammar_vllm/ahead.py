"""Rows that are filled while the engine launches its forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread

Job = Callable[[], None]


class FillThreads:
    """Threads that work off a step's jobs from when the step is scheduled until its rows are asked for.

    Whoever asks for the rows helps, so that nobody waits for a thread that has not begun. Handing over and
    finishing are a queue's `put` and a lock: an executor's futures cost the scheduler as much as the rows.
    """

    def __init__(self, num_threads: int) -> None:
        """Start nothing yet: an engine may still fork.

        Args:
            num_threads: beside the caller's; 0 leaves all work to `finish`.
        """
        self._num_threads = num_threads
        self._threads: list[Thread] = []
        self._work: SimpleQueue[Job | None] = SimpleQueue()

    def start(self, jobs: Sequence[Job], *, aside: bool) -> Callable[[], None]:
        """Begin with jobs; returns what finishes them, to be called once, and raises what one of them raised.

        Args:
            jobs: independent of each other.
            aside: whether they are worth handing over.
        """
        left = deque(jobs)
        not_done = list(range(len(left)))
        all_done = Lock()
        errors: list[BaseException] = []

        def work() -> None:
            while left:
                try:
                    job = left.popleft()
                except IndexError:
                    return  # another thread was faster
                try:
                    job()
                except BaseException as error:
                    errors.append(error)
                if not_done.pop() == 0:
                    all_done.release()

        def finish() -> None:
            work()
            all_done.acquire()
            if errors:
                raise errors[0]

        if left:
            all_done.acquire()
        if aside:
            for _ in (self._threads or self._started())[: len(left)]:
                self._work.put(work)
        return finish

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _started(self) -> list[Thread]:
        for number in range(self._num_threads):
            thread = Thread(target=self._serve, name=f"specgrammar-vllm-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self._threads

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
