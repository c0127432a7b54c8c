"""`DelayedDevice`: a stream whose work runs when the test says so, with memory that shows early reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.staging import WorkObserver
from specgrammar.runtime.outcome import Outcome, observed, read_too_early

T = TypeVar("T")

Schedule = Callable[[int], int]
"""Asked at every call of the host's how many of so many pending pieces run before it returns."""


class DelayedEvent:
    """A point in the order of a `DelayedDevice`."""

    def __init__(self, device: DelayedDevice, position: int) -> None:
        """Behind the first `position` pieces of work."""
        self._device, self._position = device, position

    def wait(self) -> None:
        """Run the device's work up to here, and as much more as the schedule says."""
        self._device.run(max(0, self._position - self._device.num_done))
        self._device.let_run()

    def done(self) -> bool:
        """Whether all work before it has run; the schedule may let it happen just now."""
        self._device.let_run()
        return self._device.num_done >= self._position


class DelayedWork(Generic[T]):
    """Work on a `DelayedDevice` (`protocols.staging.Launched`)."""

    def __init__(self, work: Callable[[], T], label: str, event: DelayedEvent) -> None:
        """Not run yet; `event` is the point behind it."""
        self._work: Callable[[], T] | None = work
        self._label, self._event = label, event
        self._outcome: Outcome[T] | None = None

    def run(self) -> None:
        """Run it; called once, by the device."""
        assert self._work is not None
        self._outcome = Outcome(self._work)
        self._work = None

    def value(self) -> T:
        """What it returned; raises SpecGrammarError before it has run."""
        if self._outcome is None:
            raise read_too_early(self._label)
        return self._outcome.value()

    def wait(self) -> T:
        """Run the device's work up to and including this; what it returned."""
        self._event.wait()
        return self.value()

    def done(self) -> bool:
        """Whether it has run; the schedule may let it happen just now."""
        return self._event.done()


class DelayedDevice:
    """A `Device` with one stream, on which nothing runs by itself.

    Work runs in order: at `run` and `run_all`, when somebody waits for it or for what is behind it, and as a
    schedule says, which is asked at every call. With a schedule that hypothesis draws, a test explores what a
    real stream may show:

        device = DelayedDevice(schedule=lambda num_pending: data.draw(st.integers(0, num_pending)))

    Its memory is made of CPU tensors. A copy reads its source when it runs: memory that was reused too early
    is copied as it is then. Until then the host sees its destination poisoned: floats are NaN, integers a
    third of their largest value, which is no token, node or likely mask. Work that is ahead of the copy sees
    there what it would on a stream. A value that is asked for too early raises.

    Attributes:
        on_work: see `protocols.staging.Device`.
        num_done: pieces of work that have run.
    """

    torch_device: torch.device = torch.device("cpu")
    can_pin = False
    runs_aside = True

    def __init__(self, schedule: Schedule = lambda _: 0, *, shares_host_memory: bool = False) -> None:
        """An idle stream.

        Args:
            schedule: says how much runs at each call; by default nothing does.
            shares_host_memory: whether work reads host memory in place, as a CPU's does, or copies of it.
        """
        self.shares_host_memory = shares_host_memory
        self.on_work: WorkObserver | None = None
        self.num_done: int = 0
        self._schedule = schedule
        self._queue: deque[DelayedWork[Any]] = deque()
        self._is_running = False
        self._copies: deque[_Copy] = deque()

    @property
    def num_pending(self) -> int:
        """Pieces of work that have not run."""
        return len(self._queue)

    def launch(self, work: Callable[[], T], label: str = "") -> DelayedWork[T]:
        """Put work behind the work so far; see `protocols.staging.Device.launch`."""
        launched = self._enqueue(observed(work, label, self.on_work), label)
        self.let_run()
        return launched

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy, and poison the destination until it has run."""
        copy = _Copy(destination, source.expand_as(destination))
        self._copies.append(copy)
        self._enqueue(copy.run, "copy")
        if not self._is_running:  # else once that work is done
            copy.poison()
        self.let_run()

    def record(self) -> DelayedEvent:
        """An event behind everything that was enqueued so far."""
        event = DelayedEvent(self, self._position())
        self.let_run()
        return event

    def let_run(self) -> None:
        """Ask the schedule, as a call of the host's does."""
        if self.num_pending and not self._is_running:
            self.run(self._schedule(self.num_pending))

    def run(self, num_pieces: int = 1) -> None:
        """Run the next pieces of work, or as many as there are.

        Raises SpecGrammarError in work of this device: a stream cannot wait for itself.
        """
        if num_pieces and self._is_running:
            raise SpecGrammarError("work on this device waits for what is enqueued behind it")
        for _ in range(min(num_pieces, self.num_pending)):
            self._run_next()

    def run_all(self) -> None:
        """Run what is enqueued, and what that enqueues."""
        while self.num_pending:
            self.run(self.num_pending)

    def _enqueue(self, work: Callable[[], T], label: str) -> DelayedWork[T]:
        launched = DelayedWork(work, label, DelayedEvent(self, self._position() + 1))
        self._queue.append(launched)
        return launched

    def _position(self) -> int:
        """Behind everything: what has run, what runs now, what is to run."""
        return self.num_done + self._is_running + self.num_pending

    def _run_next(self) -> None:
        work = self._queue.popleft()
        # On the stream, memory is as the work before left it, whatever is poisoned for the host.
        for copy in reversed(self._copies):
            copy.lift()
        self._is_running = True
        try:
            work.run()
        finally:
            self._is_running = False
        self.num_done += 1
        while self._copies and self._copies[0].is_done:
            self._copies.popleft()
        for copy in self._copies:
            copy.poison()


class _Copy:
    """A copy, and what its destination holds until it has run."""

    def __init__(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self._destination, self._source = destination, source
        self._behind: torch.Tensor | None = None
        self.is_done = False

    def run(self) -> None:
        self._destination.copy_(self._source)
        self.is_done = True

    def poison(self) -> None:
        """Hide what is there from the host."""
        memory = self._destination
        self._behind = memory.clone()
        memory.fill_(torch.nan if memory.is_floating_point() else torch.iinfo(memory.dtype).max // 3)

    def lift(self) -> None:
        """Let work on the stream see what is there."""
        if self._behind is not None:
            self._destination.copy_(self._behind)
            self._behind = None
