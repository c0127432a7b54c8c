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
        self._clock: WorkClock | None = None

    @property
    def on_work(self) -> WorkObserver | None:
        """Told of labelled work, at the first launch after its kernels are done."""
        return None if self._clock is None else self._clock.observer

    @on_work.setter
    def on_work(self, observer: WorkObserver | None) -> None:
        """Waits for the device, whose clock is compared with the host's."""
        self._clock = None if observer is None else WorkClock(observer, self._reached())

    def launch(self, work: Callable[[], T], label: str = "") -> EnqueuedWork[T]:
        """Enqueue its kernels now; see `protocols.staging.Device.launch`."""
        if self._clock is None or not label:
            return EnqueuedWork(Outcome(work), self.record())
        self._clock.report()
        begin = self._event(enable_timing=True)
        outcome = Outcome(work)
        end = self._event(enable_timing=True)
        self._clock.expect(label, begin, end)
        return EnqueuedWork(outcome, AcceleratorEvent(end))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; asynchronous where the host side is pinned."""
        destination.copy_(source, non_blocking=True)

    def record(self) -> AcceleratorEvent:
        """Record an event on the current stream."""
        return AcceleratorEvent(self._event())

    def _event(self, **options: Any) -> Any:
        event = self._module.Event(**options)
        event.record(self._module.current_stream(self.torch_device))
        return event

    def _reached(self) -> Any:
        event = self._event(enable_timing=True)
        event.synchronize()
        return event


class WorkClock:
    """When work ran, in the host's time: an event is so many milliseconds behind one that the host saw."""

    def __init__(self, observer: WorkObserver, reached: Any) -> None:
        """Start at an event that was reached just now."""
        self.observer = observer
        self._origin, self._origin_s = reached, time.perf_counter()
        self._expected: deque[tuple[str, Any, Any]] = deque()

    def expect(self, label: str, begin: Any, end: Any) -> None:
        """Report this work once its end is reached."""
        self._expected.append((label, begin, end))

    def report(self) -> None:
        """Tell the observer what is done; never blocks."""
        while self._expected and self._expected[0][2].query():
            label, begin, end = self._expected.popleft()
            self.observer(label, self._in_seconds(begin), self._in_seconds(end))

    def _in_seconds(self, event: Any) -> float:
        return self._origin_s + float(self._origin.elapsed_time(event)) / 1e3
