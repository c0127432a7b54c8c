"""`BitmaskRing`: the bitmask memory of a few steps, reused in turn."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, SpecGrammarError
from specgrammar.protocols.staging import Device, Event


class RingSlot:
    """One slot: host rows, the same memory as a tensor, and where it is uploaded to."""

    def __init__(self, device: Device, num_words: int) -> None:
        """An empty slot; `reserve` gives it memory."""
        self._device = device
        self._num_words = num_words
        self._upload: Event | None = None
        self.held = False
        self.reserve(0)

    def reserve(self, num_rows: int) -> None:
        """Grow to at least `num_rows`; the pages are touched here, once, and not in a step.

        A fresh 128 MB of rows costs 57 ms of page faults, writing to touched ones a tenth of that.
        """
        on_host = self._device.torch_device.type == "cpu"
        self.tensor = torch.zeros(
            (num_rows, self._num_words), dtype=torch.int32, pin_memory=self._device.can_pin and not on_host
        )
        self.rows: NDArray[np.int32] = self.tensor.numpy()
        self.device_tensor = (
            self.tensor if on_host else torch.empty_like(self.tensor, device=self._device.torch_device)
        )

    def wait(self) -> None:
        """Wait until the upload that reads this memory is done."""
        if self._upload is not None:
            self._upload.wait()
            self._upload = None

    def release(self, event: Event | None) -> None:
        """Give the slot back; it is handed out again only after `event`."""
        self._upload, self.held = event, False


class BitmaskRing:
    """A `BitmaskAllocator` that hands out its slots in turn, each guarded by the upload that reads it."""

    def __init__(self, device: Device, num_words: int, num_slots: int = 3) -> None:
        """Make an empty ring.

        Args:
            device: where masks go; pinned memory is used where it can pin.
            num_words: int32 words in a row, `Vocabulary.num_words`.
            num_slots: steps in flight before one must wait for the oldest upload; at least 1.
        """
        if num_slots < 1:
            raise ConfigError(f"num_slots = {num_slots}; a ring needs at least one slot")
        self._slots = [RingSlot(device, num_words) for _ in range(num_slots)]
        self._next = 0

    def acquire(self, num_rows: int) -> RingSlot:
        """The next slot, with room for `num_rows`; what is in its rows is stale.

        Raises SpecGrammarError when its holder never released it.
        """
        slot = self._slots[self._next]
        if slot.held:
            raise SpecGrammarError(
                f"all {len(self._slots)} bitmask slots are held; release each slot after its upload "
                "(GrammarMask.upload or .discard does), or give the ring more slots"
            )
        self._next = (self._next + 1) % len(self._slots)
        slot.wait()
        if num_rows > len(slot.rows):
            slot.reserve(max(num_rows, 2 * len(slot.rows)))
        slot.held = True
        return slot
