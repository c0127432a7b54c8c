"""`ManualDevice`: a stream whose work runs when the test says so, with memory that shows early reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class _Work:
    """Something enqueued, and the tensors that it will read."""

    run: Callable[[], None]
    reads: tuple[torch.Tensor, ...]


class ManualEvent:
    """A point in the order of a `ManualDevice`."""

    def __init__(self, device: ManualDevice, position: int) -> None:
        """Behind the first `position` pieces of work."""
        self._device, self._position = device, position

    def wait(self) -> None:
        """Run the device's work up to here."""
        self._device.run(max(0, self._position - self._device.num_done))

    def done(self) -> bool:
        """Whether all work before it has run."""
        return self._device.num_done >= self._position


class ManualDevice:
    """A `Device` with memory of its own and one stream, on which nothing runs by itself.

    Its memory is made of CPU tensors. Work runs in order, at `run`, `run_all` or when somebody waits for an
    event behind it; so a test explores every schedule that a real stream may show. A copy reads its source
    when it runs: host memory that was reused too early is copied as it is then. Until then its destination is
    poisoned: floats are NaN, integers a third of their largest value, which is no token, node or likely mask.

    Attributes:
        num_done: pieces of work that have run.
    """

    torch_device = torch.device("cpu")
    can_pin = False
    shares_host_memory = False

    def __init__(self) -> None:
        """An idle stream."""
        self._queue: deque[_Work] = deque()
        self.num_done = 0

    @property
    def num_pending(self) -> int:
        """Pieces of work that have not run."""
        return len(self._queue)

    def enqueue(self, work: Callable[[], None], *reads: torch.Tensor) -> None:
        """Put a kernel behind the work so far; `reads` are the tensors that it reads.

        They are named because a later copy into them must not poison them before it has run.
        """
        self._queue.append(_Work(work, reads))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy, and poison the destination unless work that is still to come reads it as it was."""
        if not any(_share_memory(destination, read) for work in self._queue for read in work.reads):
            _poison(destination)
        self.enqueue(lambda: _copy(destination, source), source)

    def record(self) -> ManualEvent:
        """An event behind everything that was enqueued so far."""
        return ManualEvent(self, self.num_done + self.num_pending)

    def run(self, num_pieces: int = 1) -> None:
        """Run the next pieces of work, or as many as there are."""
        for _ in range(min(num_pieces, self.num_pending)):
            work = self._queue.popleft()
            work.run()
            self.num_done += 1

    def run_all(self) -> None:
        """Run what is enqueued."""
        self.run(self.num_pending)


def _copy(destination: torch.Tensor, source: torch.Tensor) -> None:
    destination.copy_(source)


def _poison(tensor: torch.Tensor) -> None:
    tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max // 3)


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
