"""The ring of bitmask slots: which one comes next (what any allocator must keep to, the kit checks)."""

from __future__ import annotations

import pytest

from specgrammar.errors import ConfigError, SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.delayed_device import DelayedDevice


def test_a_free_slot_is_found_whatever_the_order_of_release() -> None:
    ring = BitmaskRing(InlineDevice(), 1, num_slots=3)
    held = [ring.acquire(1) for _ in range(3)]
    assert len({slot.rows.ctypes.data for slot in held}) == 3
    held[1].release(None)
    assert ring.acquire(1) is held[1]
    with pytest.raises(SpecGrammarError, match="all 3 bitmask slots are held"):
        ring.acquire(1)


def test_a_slot_whose_upload_is_done_comes_before_an_older_one_that_is_in_flight() -> None:
    device = DelayedDevice()
    ring = BitmaskRing(device, 1, num_slots=3)
    first, second, third = (ring.acquire(1) for _ in range(3))
    device.launch(lambda: None)
    first.release(device.record())
    third.release(None)
    assert ring.acquire(1) is third
    assert device.num_pending == 1  # nobody waited
    second.release(device.record())
    assert ring.acquire(1) is first  # both are in flight: the oldest
    assert device.num_pending == 0


def test_among_slots_that_are_done_the_one_used_longest_ago_is_next() -> None:
    ring = BitmaskRing(InlineDevice(), 1, num_slots=2)
    used = []
    for _ in range(4):
        used.append(ring.acquire(1))
        used[-1].release(None)
    assert used[0] is used[2] is not used[1] is used[3]


def test_a_ring_has_a_slot() -> None:
    with pytest.raises(ConfigError, match="num_slots = 0"):
        BitmaskRing(InlineDevice(), 1, num_slots=0)
