"""Bitmask allocators, each with one fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing, RingSlot
from specgrammar.protocols.staging import Device, Event, SlotTensors
from specgrammar.testing.checks.allocator import ALLOCATOR_CHECKS
from tests.conformance.cases import Broken

Memory = tuple[torch.Tensor, torch.Tensor]


class RingOf(BitmaskRing):
    """A ring whose slots are of another class."""

    slot_class: type[RingSlot] = RingSlot

    def __init__(self, device: Device, num_words: int, num_slots: int = 3) -> None:
        super().__init__(device, num_words, num_slots)
        self._slots = [self.slot_class(device, num_words) for _ in range(num_slots)]


def ring_of(slot_class: type[RingSlot]) -> Callable[[Device, int], RingOf]:
    return type(f"RingOf{slot_class.__name__}", (RingOf,), {"slot_class": slot_class})


class Unguarded(RingSlot):
    def release(self, event: Event | None) -> None:  # noqa: ARG002  # the fault
        super().release(None)


class ReleasedTwice(RingSlot):
    def release(self, event: Event | None) -> None:
        self._upload, self.held = event, False


class WordsOfAnotherWidth(RingSlot):
    def _memory(self, *shape: int) -> Memory:
        host = torch.zeros(shape, dtype=torch.int64)
        return host, host if self._device.shares_host_memory else host.clone()


class Transposed(RingSlot):
    def _memory(self, *shape: int) -> Memory:
        host = torch.zeros(shape[::-1], dtype=torch.int32).t()
        return host, host if self._device.shares_host_memory else torch.empty_like(host)


class OneOwner(RingSlot):
    def reserve(self, num_rows: int) -> None:
        super().reserve(num_rows)
        host, device = self._memory(1)
        self._tensors = self._tensors._replace(host_owners=host, device_owners=device)
        self.owners = host.numpy()


class SharingAssumed(RingSlot):
    def _memory(self, *shape: int) -> Memory:
        host, _ = super()._memory(*shape)
        return host, host


class SharingIgnored(RingSlot):
    def _memory(self, *shape: int) -> Memory:
        host, _ = super()._memory(*shape)
        return host, host.clone()


class CopiedTensor(RingSlot):
    def reserve(self, num_rows: int) -> None:
        super().reserve(num_rows)
        self._tensors = self._tensors._replace(host_rows=torch.tensor(self.rows))


class GrowsInPlace(RingSlot):
    """Has room ahead, and a larger view of it is taken to be another memory, which nothing reads."""

    def reserve(self, num_rows: int) -> None:
        if not num_rows:
            self._rows, self._owners = self._memory(2000, self._num_words), self._memory(2000)
        self._first = {}
        self._tensors = SlotTensors._make(part[:num_rows] for part in (*self._rows, *self._owners))
        self.rows, self.owners = self._tensors.host_rows.numpy(), self._tensors.host_owners.numpy()


class GuardLostInGrowth(RingOf):
    slot_class = GrowsInPlace

    def acquire(self, num_rows: int) -> RingSlot:
        for slot in self._slots:
            if not slot.held and len(slot.rows) < num_rows:
                slot._upload = None
        return super().acquire(num_rows)


class ShortByOne(BitmaskRing):
    def acquire(self, num_rows: int) -> RingSlot:
        return super().acquire(max(0, num_rows - 1))


class FreshEveryTime(BitmaskRing):
    def __init__(self, device: Device, num_words: int) -> None:
        super().__init__(device, num_words)
        self._new = partial(RingSlot, device, num_words)

    def acquire(self, num_rows: int) -> RingSlot:
        self._slots = [self._new()]
        return super().acquire(num_rows)


class GrowsInsteadOfWaiting(FreshEveryTime):
    def acquire(self, num_rows: int) -> RingSlot:
        if not any(slot.ready() and not slot.held for slot in self._slots):
            self._slots.insert(0, self._new())
        return BitmaskRing.acquire(self, num_rows)


class FailsInsteadOfWaiting(BitmaskRing):
    def acquire(self, num_rows: int) -> RingSlot:
        if not any(slot.ready() and not slot.held for slot in self._slots):
            raise SpecGrammarError("no slot is free")
        return super().acquire(num_rows)


class OldestFirst(BitmaskRing):
    def acquire(self, num_rows: int) -> RingSlot:
        for slot in [slot for slot in self._slots if not slot.held][:1]:
            slot.wait()
        return super().acquire(num_rows)


class ScratchOfAll(BitmaskRing):
    """Every slot is a view of one memory."""

    def acquire(self, num_rows: int) -> RingSlot:
        slot, first = super().acquire(num_rows), max(self._slots, key=lambda slot: len(slot.rows))
        slot.rows, slot._first = first.rows, {}
        whole = first.tensors(len(first.rows))
        slot._tensors = slot._tensors._replace(host_rows=whole.host_rows, device_rows=whole.device_rows)
        return slot


class PoolThatMoves(BitmaskRing):
    """Grows all slots together, those that are held, too."""

    def acquire(self, num_rows: int) -> RingSlot:
        slot = super().acquire(num_rows)
        for other in self._slots:
            if len(other.rows) < len(slot.rows):
                other.reserve(len(slot.rows))
        return slot


NEW_IN_WARM = r"acquire\(64\) gave new memory at step 40"
OTHER_ROWS = r"step \d wrote \d everywhere, and its upload brought rows of"

BROKEN_ALLOCATORS = [
    Broken(fault, ALLOCATOR_CHECKS, make, f"check_{check}", finds)
    for fault, make, check, finds in (
        ("a ring without a guard", ring_of(Unguarded), "uploads_arrive_as_written", OTHER_ROWS),
        ("the guard is lost where a slot grows", GuardLostInGrowth, "uploads_arrive_as_written", OTHER_ROWS),
        (
            "a second release is taken",
            ring_of(ReleasedTwice),
            "a_slot_is_released_once",
            "raised nothing; expected SpecGrammarError",
        ),
        ("short by one row", ShortByOne, "a_slot_has_room", r"acquire\(\d+\) .* rows; expected at least"),
        ("int64 rows", ring_of(WordsOfAnotherWidth), "a_slot_has_room", "dtype of rows .* is int64"),
        ("columns lie behind each other", ring_of(Transposed), "a_slot_has_room", "rows is not C-contiguous"),
        ("one owner for all rows", ring_of(OneOwner), "a_slot_has_room", r"shape of owners .* is \(1,\)"),
        (
            "sharing of host memory is assumed",
            ring_of(SharingAssumed),
            "views_are_of_the_same_memory",
            "shows at once, without an upload, in device_rows",
        ),
        (
            "a device that shares host memory gets its own",
            ring_of(SharingIgnored),
            "views_are_of_the_same_memory",
            "does not show in device_rows",
        ),
        (
            "the tensor is a copy of the array",
            ring_of(CopiedTensor),
            "views_are_of_the_same_memory",
            "host_rows does not show what is written to rows",
        ),
        (
            "slots that are held at once share memory",
            ScratchOfAll,
            "a_held_slot_is_its_holders_alone",
            "shows rows of another",
        ),
        (
            "growth moves the slots that are held",
            PoolThatMoves,
            "a_held_slot_is_its_holders_alone",
            "of a held slot moved when others grew",
        ),
        (
            "fails where it has to wait",
            FailsInsteadOfWaiting,
            "acquire_waits_for_uploads",
            "no slot is free.*expected it to wait",
        ),
        (
            "grows where it has to wait",
            GrowsInsteadOfWaiting,
            "acquire_waits_for_uploads",
            "made new memory at step 40",
        ),
        (
            "waits for the oldest slot, free ones or not",
            OldestFirst,
            "acquire_waits_for_nothing_else",
            "waited for an upload, though one of 3 free slots had none",
        ),
        ("new memory each time", FreshEveryTime, "a_warm_ring_allocates_nothing", NEW_IN_WARM),
    )
]
