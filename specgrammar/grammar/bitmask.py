"""`BitmaskRing`: the bitmask memory of a few steps, used again and again."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, SpecGrammarError
from specgrammar.protocols.staging import Device, Event, SlotTensors

_MOST_KEPT = 16
"""Numbers of rows whose tensors are kept: second draws want the same few step after step."""


class RingSlot:
    """A `BitmaskSlot`: rows and owners on the host, and where they are uploaded to."""

    def __init__(self, device: Device, num_words: int) -> None:
        """An empty slot; `reserve` gives it memory."""
        self._device = device
        self._num_words = num_words
        self._upload: Event | None = None
        self.held: bool = False
        self.reserve(0)

    def reserve(self, num_rows: int) -> None:
        """Grow to at least `num_rows`; the pages are touched here, once, and not in a step.

        A fresh 128 MB of rows costs 57 ms of page faults, writing to touched ones a tenth of that.
        """
        rows, device_rows = self._memory(num_rows, self._num_words)
        owners, device_owners = self._memory(num_rows)
        self._tensors = SlotTensors(rows, device_rows, owners, device_owners)
        self._first: dict[int, SlotTensors] = {}
        self.rows: NDArray[np.int32] = rows.numpy()
        self.owners: NDArray[np.int32] = owners.numpy()

    def _memory(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Host memory and the device's for the same."""
        if self._device.can_pin:
            host = torch.zeros(shape, dtype=torch.int32, pin_memory=True)
        else:  # NumPy asks for huge pages, torch does not, and each row would be four small ones
            host = torch.from_numpy(np.full(shape, 0, np.int32))
        if self._device.shares_host_memory:
            return host, host
        return host, torch.empty_like(host, device=self._device.torch_device)

    def tensors(self, num_rows: int) -> SlotTensors:
        """The first rows and owners, see `BitmaskSlot`."""
        if num_rows not in self._first:
            if not 0 <= num_rows <= len(self.rows):
                raise SpecGrammarError(f"{num_rows} rows of a bitmask slot that has {len(self.rows)}")
            if len(self._first) >= _MOST_KEPT:
                self._first.clear()
            self._first[num_rows] = SlotTensors._make(whole[:num_rows] for whole in self._tensors)
        return self._first[num_rows]

    def ready(self) -> bool:
        """Whether nothing reads this memory any more; never blocks."""
        return self._upload is None or self._upload.done()

    def wait(self) -> None:
        """Wait until the upload that reads this memory is done."""
        if self._upload is not None:
            self._upload.wait()
            self._upload = None

    def release(self, event: Event | None) -> None:
        """Give the slot back; it is handed out again only after `event`.

        Raises SpecGrammarError for a slot that is not held: a second release would undo the first one's guard.
        """
        if not self.held:
            raise SpecGrammarError("this bitmask slot was released already; its holder releases it once")
        self._upload, self.held = event, False


class BitmaskRing:
    """A `BitmaskAllocator` over a few slots, each guarded by the upload that reads it."""

    def __init__(self, device: Device, num_words: int, num_slots: int = 3) -> None:
        """Make an empty ring.

        Args:
            device: where masks go; pinned memory is used where it can pin.
            num_words: int32 words in a row, `Vocabulary.num_words`.
            num_slots: masks that may be held at once, and uploads in flight before one must wait; at least 1.
        """
        if num_slots < 1:
            raise ConfigError(f"num_slots = {num_slots}; a ring needs at least one slot")
        self._slots = [RingSlot(device, num_words) for _ in range(num_slots)]  # used longest ago first

    def acquire(self, num_rows: int) -> RingSlot:
        """A free slot with room for `num_rows`; what is in its rows is stale.

        The one that was used longest ago among those whose upload is done; if there is none, waits for the
        oldest upload. Raises SpecGrammarError when all slots are held.
        """
        free = [slot for slot in self._slots if not slot.held]
        if not free:
            raise SpecGrammarError(
                f"all {len(self._slots)} bitmask slots are held; release each slot after its upload "
                "(GrammarMask.apply or .discard does), or give the ring more slots"
            )
        slot = next((slot for slot in free if slot.ready()), free[0])
        slot.wait()
        if num_rows > len(slot.rows):
            slot.reserve(max(num_rows, 2 * len(slot.rows)))
        self._slots.remove(slot)
        self._slots.append(slot)
        slot.held = True
        return slot
