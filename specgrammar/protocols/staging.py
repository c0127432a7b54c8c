"""Staging: how a draft tree gets to the host, and bitmask rows to the device, without waiting.

Memory rules, whoever implements these: host memory is not read before the copy into it is done, and not
reused before the upload from it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from specgrammar.trees.tree import DraftTree, HostTree


class Event(Protocol):
    """A point in a stream's order."""

    def wait(self) -> None:
        """Block the host until everything enqueued before the event is done."""
        ...

    def done(self) -> bool:
        """Whether that is so already; never blocks."""
        ...


class Device(Protocol):
    """The little that staging needs of a device; every operation goes to its current stream, in order."""

    @property
    def torch_device(self) -> torch.device:
        """Where logits and device trees live."""
        ...

    @property
    def can_pin(self) -> bool:
        """Whether page-locked host memory exists and makes copies asynchronous."""
        ...

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy, either way; asynchronous where `can_pin` and the host side is pinned."""
        ...

    def record(self) -> Event:
        """An event behind everything that was enqueued so far."""
        ...


class BitmaskSlot(Protocol):
    """One step's bitmask memory, owned by the holder until `release`."""

    @property
    def rows(self) -> NDArray[np.int32]:
        """Host rows, C-contiguous int32 `[capacity, num_words]`; what earlier steps left in them is stale."""
        ...

    @property
    def tensor(self) -> torch.Tensor:
        """The same memory as a torch tensor, pinned where the device can pin."""
        ...

    @property
    def device_tensor(self) -> torch.Tensor:
        """Where the rows are uploaded to, as large; `tensor` itself where the device is the host."""
        ...

    def release(self, event: Event | None) -> None:
        """Give the slot back; it is handed out again only after `event` (the upload that reads it) is done."""
        ...


class BitmaskAllocator(Protocol):
    """A ring of bitmask slots; no memory is allocated per step once it is warm."""

    def acquire(self, num_rows: int) -> BitmaskSlot:
        """A slot with at least `num_rows` rows; waits for the upload that still reads the oldest one."""
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
