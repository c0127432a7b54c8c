"""`AcceleratorDevice`: CUDA or ROCm, through what torch offers for any accelerator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from specgrammar.protocols.staging import WorkObserver
from specgrammar.runtime.outcome import Outcome

T = TypeVar("T")


class AcceleratorEvent:
    """An event of torch's, CUDA's or another accelerator's."""

    def __init__(self, event: Any) -> None:
        """Wrap a recorded event."""
        self._event = event

    def wait(self) -> None:
        """Block the host until it is reached."""
        self._event.synchronize()

    def done(self) -> bool:
        """Whether it was reached."""
        return bool(self._event.query())


class EnqueuedWork(Generic[T]):
    """Work whose kernels are enqueued (`protocols.staging.Launched`)."""

    def __init__(self, outcome: Outcome[T], event: AcceleratorEvent) -> None:
        """What enqueuing returned, and an event behind the kernels."""
        self._outcome, self._event = outcome, event

    def value(self) -> T:
        """What it returned: handles, whose memory is written in the stream's order."""
        return self._outcome.value()

    def wait(self) -> T:
        """Block the host until the kernels are done."""
        self._event.wait()
        return self._outcome.value()

    def done(self) -> bool:
        """Whether the kernels are done."""
        return self._event.done()


class AcceleratorDevice:
    """A CUDA or ROCm device; operations go to its current stream."""

    can_pin = True
    shares_host_memory = False
    runs_aside = True

    def __init__(self, torch_device: torch.device) -> None:
        """Bind to a device, e.g. `torch.device("cuda", 0)`, that `device_for` would accept."""
        self.torch_device = torch_device
        self._module = torch.get_device_module(torch_device)
        self.on_work: WorkObserver | None = None
        self._clock: WorkClock | None = None

    def launch(self, work: Callable[[], T], label: str = "") -> EnqueuedWork[T]:
        """Enqueue its kernels now; see `protocols.staging.Device.launch`.

        Labelled work is reported by the first labelled launch after its kernels are done. The first one that
        is observed waits for the device, to compare its clock with the host's.
        """
        if self.on_work is None or not label:
            return EnqueuedWork(Outcome(work), self.record())
        if self._clock is None:
            self._clock = WorkClock(self._timed_event())
        self._clock.report(self.on_work)
        begin = self._timed_event()
        outcome = Outcome(work)
        end = self._timed_event()
        self._clock.expect(label, begin, end)
        return EnqueuedWork(outcome, AcceleratorEvent(end))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; asynchronous where the host side is pinned."""
        destination.copy_(source, non_blocking=True)

    def record(self) -> AcceleratorEvent:
        """Record an event on the current stream."""
        return AcceleratorEvent(self._recorded(self._module.Event()))

    def _timed_event(self) -> Any:
        return self._recorded(self._module.Event(enable_timing=True))

    def _recorded(self, event: Any) -> Any:
        event.record(self._module.current_stream(self.torch_device))
        return event


class WorkClock:
    """When work ran, in the host's time: an event is so many milliseconds behind one that the host saw."""

    def __init__(self, origin: Any) -> None:
        """Wait for a timed event, and take the time."""
        origin.synchronize()
        self._origin, self._origin_s = origin, time.perf_counter()
        self._expected: deque[tuple[str, Any, Any]] = deque()

    def expect(self, label: str, begin: Any, end: Any) -> None:
        """Report this work once its end is reached."""
        self._expected.append((label, begin, end))

    def report(self, observer: WorkObserver) -> None:
        """Tell what is done; never blocks."""
        while self._expected and self._expected[0][2].query():
            label, begin, end = self._expected.popleft()
            observer(label, self._in_seconds(begin), self._in_seconds(end))

    def _in_seconds(self, event: Any) -> float:
        return self._origin_s + float(self._origin.elapsed_time(event)) / 1e3
