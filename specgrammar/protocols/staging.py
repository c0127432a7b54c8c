"""Staging: how a draft tree gets to the host, and bitmask rows to the device, without waiting.

Memory rules, whoever implements these: host memory is not read before the copy into it is done, and not
reused before the upload from it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from specgrammar.trees.tree import DraftTree, HostTree

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

WorkObserver = Callable[[str, float, float], None]
"""Told of work that ran: its label, when it began and when it ended, in seconds of `time.perf_counter`."""


class Event(Protocol):
    """A point in a stream's order."""

    def wait(self) -> None:
        """Block the host until everything enqueued before the event is done."""
        ...

    def done(self) -> bool:
        """Whether that is so already; never blocks."""
        ...


class Launched(Protocol[T_co]):
    """Work that was put on a device's stream, and what it returns or raises."""

    def value(self) -> T_co:
        """What the work returned, for work that was enqueued behind it; never blocks the host.

        On an accelerator these are the handles of its tensors, there as soon as its kernels are enqueued.
        Elsewhere the work itself must be done: raises SpecGrammarError where the host asks too early.
        Raises what the work raised.
        """
        ...

    def wait(self) -> T_co:
        """Block the host until the work is done; returns what it returned, raises what it raised."""
        ...

    def done(self) -> bool:
        """Whether that is so already; never blocks."""
        ...


class Device(Protocol):
    """The little that a step needs of a device; every operation goes to its current stream, in order.

    Attributes:
        on_work: told of every piece of labelled work after it ran, from whichever thread it ran on; None for
            nobody. It must not raise.
    """

    on_work: WorkObserver | None

    @property
    def torch_device(self) -> torch.device:
        """Where logits and device trees live."""
        ...

    @property
    def can_pin(self) -> bool:
        """Whether page-locked host memory exists and makes copies asynchronous."""
        ...

    @property
    def shares_host_memory(self) -> bool:
        """Whether the device reads host memory in place, so that bitmask rows need no upload."""
        ...

    @property
    def runs_aside(self) -> bool:
        """Whether what was launched runs while the host goes on."""
        ...

    def launch(self, work: Callable[[], T], label: str = "") -> Launched[T]:
        """Put work on the stream, behind everything that was enqueued so far, and return.

        The work may run on another thread: what is thread-local (`torch.no_grad`) it must set itself, and what
        it touches belongs to the stream from here on: the host changes it only by launching again. What it
        raises is kept for `value` and `wait`; work that was enqueued behind it runs all the same.

        Args:
            work: on an accelerator, a function that enqueues kernels on the current stream.
            label: what `on_work` is told; work without one is not reported.
        """
        ...

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy, either way; asynchronous where the host side is pinned.

        Until an event that is recorded behind it is done, the source may not be changed by the host and the
        destination may not be read by it.
        """
        ...

    def record(self) -> Event:
        """An event behind everything that was enqueued so far."""
        ...


class SlotTensors(NamedTuple):
    """The first rows of a slot and their owners, on the host and where they are uploaded to.

    Where a device shares host memory its tensors are the host's.
    """

    host_rows: torch.Tensor
    """int32 `[num_rows, num_words]`."""
    device_rows: torch.Tensor
    """Likewise."""
    host_owners: torch.Tensor
    """int32 `[num_rows]`."""
    device_owners: torch.Tensor
    """Likewise."""


class BitmaskSlot(Protocol):
    """One step's mask memory, owned by the holder until `release`.

    Rows and their owners are each seen three ways: as a host array, as the same memory in a torch tensor
    (pinned where the device can pin), and as the device's tensor that this is uploaded to. What earlier steps
    left is stale.
    """

    @property
    def rows(self) -> NDArray[np.int32]:
        """Host rows, C-contiguous int32 `[capacity, num_words]`."""
        ...

    @property
    def owners(self) -> NDArray[np.int32]:
        """The logits row of each mask row, int32 `[capacity]`; -1 for a row that nobody owns."""
        ...

    def tensors(self, num_rows: int) -> SlotTensors:
        """The first `num_rows`, at most `capacity`, of rows and owners."""
        ...

    def release(self, event: Event | None) -> None:
        """Give the slot back; it is handed out again only after `event`, the last that reads host memory.

        None where nothing reads it. What is still to read the device's memory must be enqueued already.
        """
        ...


class BitmaskAllocator(Protocol):
    """A ring of bitmask slots; no memory is allocated per step once it is warm."""

    def acquire(self, num_rows: int) -> BitmaskSlot:
        """A slot with at least `num_rows` rows; waits where uploads still read every free one."""
        ...


class StagedTree(Protocol):
    """A tree on its way to the host."""

    def resolve(self) -> HostTree:
        """The host arrays; waits for the copy where there was one. Idempotent."""
        ...


class StagingStrategy(Protocol):
    """Brings a tree's ids and links to the host."""

    def stage(self, tree: DraftTree) -> StagedTree:
        """Enqueue what is needed, on the current stream, and return at once.

        Called after the draft's kernels are enqueued and before the verify forward is.
        """
        ...
