"""A few threads for jobs that wait, started when there is work and gone when there is none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Lane:
    """Runs jobs in the order in which they come, at most a few at a time.

    Its threads are daemons: unlike those of `concurrent.futures`, they do not keep an interpreter from ending
    that has a compilation under way.
    """

    def __init__(self, name: str, max_threads: int) -> None:
        """Make a lane; no thread starts yet."""
        self._name = name
        self._max_threads = max_threads
        self._jobs: deque[Callable[[], None]] = deque()
        self._num_threads = 0
        self._lock = threading.Lock()

    def put(self, job: Callable[[], None]) -> None:
        """Queue a job that does not raise. Raises RuntimeError if the system has no thread for it."""
        with self._lock:
            self._jobs.append(job)
            if self._num_threads == self._max_threads:
                return
            self._num_threads += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._num_threads -= 1
                if not self._num_threads:  # else another thread takes it
                    self._jobs.remove(job)
                    raise

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._num_threads -= 1
                    return
                job = self._jobs.popleft()
            job()
