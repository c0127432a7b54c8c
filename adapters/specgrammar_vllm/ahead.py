"""Rows that are filled while the engine launches its forward."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread


class Jobs:
    """A step's jobs, numbered: whoever has time takes the next."""

    __slots__ = ("_all_done", "_error", "_job", "_left", "_not_done")

    def __init__(self, job: Callable[[int], None], num_jobs: int) -> None:
        """Begin with none.

        Args:
            job: does the one with a number in [0, num_jobs); they are independent of each other.
            num_jobs: how many.
        """
        self._job = job
        self._left = [*range(num_jobs)]
        self._not_done = [*range(num_jobs)]
        self._error: BaseException | None = None
        self._all_done = Lock()
        if num_jobs:
            self._all_done.acquire()

    def work(self) -> None:
        """Do jobs as long as there are any that nobody has taken."""
        left = self._left
        while left:
            try:
                number = left.pop()
            except IndexError:
                return  # another thread was faster
            try:
                self._job(number)
            except BaseException as error:
                self._error = error
            if self._not_done.pop() == 0:
                self._all_done.release()

    def finish(self) -> None:
        """Help, and wait for what others are at; raises what a job raised. Once only."""
        if self._left:
            self.work()
        self._all_done.acquire()
        if self._error is not None:
            raise self._error


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
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self, job: Callable[[int], None], num_jobs: int) -> Jobs:
        """Begin with jobs; they have to be finished."""
        jobs = Jobs(job, num_jobs)
        for _ in (self._threads or self._started())[:num_jobs]:
            self._work.put(jobs.work)
        return jobs

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
