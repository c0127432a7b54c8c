"""Checks of `BitmaskAllocator`: whose memory a slot is, and for how long.

The device is a `DelayedDevice`: uploads run when a check says so, and memory that was reused too early is
uploaded as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.staging import BitmaskAllocator, BitmaskSlot, Device
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.checks.base import Checks, Draw, Story, expect, expect_raise, explore, same
from specgrammar.testing.delayed_device import DelayedDevice

MakeAllocator = Callable[[Device, int], BitmaskAllocator]
"""What allocator checks take: makes one for a device and a number of int32 words in a row."""

ALLOCATOR_CHECKS = Checks("allocator")

NUM_WORDS = 3
_ENOUGH_ROUNDS = 40
"""By then every slot of a ring was handed out; a larger ring would hold more than any step needs."""


def devices() -> list[tuple[str, Device]]:
    """Fresh devices: with memory of their own, and reading the host's in place."""
    return [
        ("a device with memory of its own", DelayedDevice()),
        ("a device that shares host memory", DelayedDevice(shares_host_memory=True)),
        ("a CPU", InlineDevice()),
    ]


def views_of(slot: BitmaskSlot) -> list[tuple[str, NDArray[np.int32], torch.Tensor, torch.Tensor]]:
    """Rows and owners: name, host array, host tensor, device tensor."""
    tensors = slot.tensors(len(slot.rows))
    return [
        ("rows", slot.rows, tensors.host_rows, tensors.device_rows),
        ("owners", slot.owners, tensors.host_owners, tensors.device_owners),
    ]


def place_of(slot: BitmaskSlot) -> tuple[int, ...]:
    """Where its memory is."""
    views = views_of(slot)
    return tuple(address for *_, host, device in views for address in (host.data_ptr(), device.data_ptr()))


def hold_some(allocator: BitmaskAllocator, num_rows: int = 2, most: int = 8) -> list[BitmaskSlot]:
    """As many slots as may be held at once, up to `most`; at least one may."""
    held = [allocator.acquire(num_rows)]
    while len(held) < most:
        try:
            held.append(allocator.acquire(num_rows))
        except SpecGrammarError:
            break
    return held


def upload(device: Device, slot: BitmaskSlot, num_rows: int) -> None:
    """Enqueue the copies that a mask enqueues."""
    if not device.shares_host_memory:
        tensors = slot.tensors(num_rows)
        device.copy(tensors.device_rows, tensors.host_rows)
        device.copy(tensors.device_owners, tensors.host_owners)


@ALLOCATOR_CHECKS.add(invariant=3)
def check_a_slot_has_room(make: MakeAllocator) -> None:
    """A slot has at least the rows that were asked for: int32, C-contiguous, with one owner for each row."""
    for what, device in devices():
        allocator = make(device, NUM_WORDS)
        for num_rows in (2, 0, 1, 7, 8, 3, 600):
            slot = allocator.acquire(num_rows)
            asked = f"acquire({num_rows}) for {what}"
            capacity = len(slot.rows)
            expect(capacity >= num_rows, f"{asked} gave {capacity} rows; expected at least {num_rows}")
            for name, array, host, on_device in views_of(slot):
                shape = (capacity, NUM_WORDS) if name == "rows" else (capacity,)
                for view, found in ((name, array), (f"host_{name}", host), (f"device_{name}", on_device)):
                    same(f"the shape of {view} after {asked}", tuple(found.shape), shape)
                same(f"the dtype of {name} after {asked}", array.dtype, np.dtype(np.int32))
                same(f"the dtype of host_{name} after {asked}", host.dtype, torch.int32)
                same(f"the dtype of device_{name} after {asked}", on_device.dtype, torch.int32)
                is_plain = array.flags.c_contiguous and array.flags.writeable
                expect(is_plain, f"{name} is not C-contiguous and writeable after {asked}")
            slot.release(None)


@ALLOCATOR_CHECKS.add(invariant=3)
def check_views_are_of_the_same_memory(make: MakeAllocator) -> None:
    """The host's array and tensor are one memory, and the device's is it, too, only where it shares that."""
    for what, device in devices():
        slot = make(device, NUM_WORDS).acquire(4)
        for mark, (name, array, host, on_device) in enumerate(views_of(slot), start=5):
            on_device.fill_(1)
            array[:] = mark
            expect(
                bool((host == mark).all()), f"host_{name} does not show what is written to {name}, on {what}"
            )
            expected = mark if device.shares_host_memory else 1
            expect(
                bool((on_device == expected).all()),
                f"on {what}, what is written to {name} "
                + ("does not show in" if device.shares_host_memory else "shows at once, without an upload, in")
                + f" device_{name}",
            )
        expect(bool((slot.rows == 5).all()), f"rows and owners overlap, on {what}")
        slot.release(None)


@ALLOCATOR_CHECKS.add(invariant=8)
def check_a_held_slot_is_its_holders_alone(make: MakeAllocator) -> None:
    """Slots that are held at once share no memory, and a held one's stays whatever is acquired after it."""
    for what, device in devices():
        allocator = make(device, NUM_WORDS)
        held = hold_some(allocator)
        kept = views_of(held[0])
        for mark, slot in enumerate(held, start=1):
            for _, array, _, on_device in views_of(slot):
                array[:] = mark
                on_device.fill_(mark)
        for mark, slot in enumerate(held, start=1):
            for name, array, _, on_device in views_of(slot):
                shown = np.concatenate([np.ravel(array), on_device.cpu().numpy().ravel()])
                expect(
                    (shown == mark).all(),
                    f"slot {mark} of {len(held)} that are held at once shows {name} of another, on {what}",
                )
        for slot in held[1:]:
            slot.release(None)
            allocator.acquire(len(slot.rows) + 100).release(None)  # nobody's memory moves when others grow
        for (name, before, *_, device_before), (_, array, *_, on_device) in zip(
            kept, views_of(held[0]), strict=True
        ):
            is_same = before is array or np.shares_memory(before, array)
            is_same = is_same and device_before.data_ptr() == on_device.data_ptr()
            expect(is_same and (array == 1).all(), f"{name} of a held slot moved when others grew, on {what}")
        held[0].release(None)


@ALLOCATOR_CHECKS.add(invariant=8)
def check_uploads_arrive_as_written(make: MakeAllocator) -> None:
    """A slot is handed out again only when it was released and the event that it was released with is done."""

    def play(draw: Draw, story: Story) -> None:
        shares = draw(st.booleans())
        device = DelayedDevice(shares_host_memory=shares)
        story.tell("a device that reads host memory in place" if shares else "a device with memory of its own")
        allocator = make(device, NUM_WORDS)
        held: list[tuple[int, BitmaskSlot, int]] = []
        arrived: dict[int, tuple[list[int], list[int]]] = {}

        def hand_in(index: int) -> None:
            step, slot, num_rows = held.pop(index)
            host_rows, rows, host_owners, owners = slot.tensors(num_rows)
            if shares:
                rows, owners = host_rows, host_owners

            def read() -> None:
                arrived[step] = (torch.unique(rows).tolist(), torch.unique(owners).tolist())

            upload(device, slot, num_rows)
            device.launch(read)
            slot.release(device.record())
            story.tell(f"step {step}: upload its {num_rows} rows, and release the slot behind that")

        for step in range(draw(st.integers(1, 4))):
            num_rows = draw(st.sampled_from([2, 1, 5, 40]))
            while True:
                try:
                    slot = allocator.acquire(num_rows)
                    break
                except SpecGrammarError:
                    expect(held, f"acquire({num_rows}) raised SpecGrammarError, and no slot is held")
                    hand_in(0)
            story.tell(f"step {step}: acquire({num_rows}), write {step} into every row and owner")
            slot.rows[:num_rows], slot.owners[:num_rows] = step, step
            held.append((step, slot, num_rows))
            while draw(st.booleans()) and held:
                hand_in(draw(st.integers(0, len(held) - 1)))
            if num_pieces := draw(st.integers(0, min(3, device.num_pending))):
                story.tell(f"the device runs {num_pieces} of {device.num_pending} pieces of work")
                device.run(num_pieces)
        while held:
            hand_in(0)
        story.tell("the device runs everything")
        device.run_all()
        for step, (rows, owners) in sorted(arrived.items()):
            expect(
                rows == [step] and owners == [step],
                f"step {step} wrote {step} everywhere, and its upload brought rows of {rows} "
                f"and owners of {owners}",
            )

    explore(play)


@ALLOCATOR_CHECKS.add(invariant=8)
def check_acquire_waits_for_uploads(make: MakeAllocator) -> None:
    """Where uploads still read every free slot, `acquire` waits for one: it neither fails nor grows."""
    device = DelayedDevice()
    allocator = make(device, NUM_WORDS)
    seen: dict[tuple[int, ...], list[torch.Tensor]] = {}  # the tensors keep addresses from being used again
    for step in range(2 * _ENOUGH_ROUNDS):
        try:
            slot = allocator.acquire(4)
        except SpecGrammarError as error:
            message = f"acquire raised ({error}) while uploads read the free slots; expected it to wait for one"
            expect(False, message)
            return
        is_new = place_of(slot) not in seen
        expect(
            not (is_new and step >= _ENOUGH_ROUNDS),
            f"acquire made new memory at step {step}, as uploads read every slot; expected it to wait for one",
        )
        seen.setdefault(place_of(slot), [view for _, _, *views in views_of(slot) for view in views])
        upload(device, slot, 4)
        slot.release(device.record())


@ALLOCATOR_CHECKS.add(invariant=8)
def check_acquire_waits_for_nothing_else(make: MakeAllocator) -> None:
    """`acquire` does not wait where a free slot has no upload to wait for."""
    device = DelayedDevice()
    allocator = make(device, NUM_WORDS)
    held = hold_some(allocator)
    device.launch(partial(int))
    for slot in held[:-1]:
        slot.release(device.record())
    held[-1].release(None)
    allocator.acquire(1).release(None)
    expect(
        device.num_done == 0,
        f"acquire waited for an upload, though one of {len(held)} free slots had none; expected that one",
    )


@ALLOCATOR_CHECKS.add(invariant=8)
def check_a_slot_is_released_once(make: MakeAllocator) -> None:
    """A second `release` raises SpecGrammarError: it would undo the guard of the first."""
    device = DelayedDevice()
    allocator = make(device, NUM_WORDS)
    slot = allocator.acquire(2)
    upload(device, slot, 2)
    slot.release(device.record())
    with expect_raise(SpecGrammarError, "release of a slot that is not held"):
        slot.release(None)
    slot = allocator.acquire(2)
    slot.release(None)
    with expect_raise(SpecGrammarError, "release of a slot that is not held"):
        slot.release(None)


@ALLOCATOR_CHECKS.add(invariant=8)
def check_a_warm_ring_allocates_nothing(make: MakeAllocator) -> None:
    """Once it is warm, acquiring no more rows than before hands out the memory that is there."""
    for what, device in devices():
        allocator = make(device, NUM_WORDS)
        warm: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for step in range(2 * _ENOUGH_ROUNDS):
            num_rows = 64 if step < _ENOUGH_ROUNDS else (64, 1, 17, 0)[step % 4]
            slot = allocator.acquire(num_rows)
            is_new = place_of(slot) not in warm
            expect(
                not (is_new and step >= _ENOUGH_ROUNDS),
                f"acquire({num_rows}) gave new memory at step {step}, where {len(warm)} slots of 64 rows "
                f"are free, for {what}",
            )
            warm.setdefault(place_of(slot), [view for _, _, *views in views_of(slot) for view in views])
            upload(device, slot, num_rows)
            event = device.record()
            event.wait()
            slot.release(event)
