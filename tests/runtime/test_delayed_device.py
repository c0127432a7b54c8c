"""The device that other tests trust to show what is read or reused too early."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.protocols.staging import Event
from specgrammar.testing.delayed_device import DelayedDevice

POISON = torch.iinfo(torch.int64).max // 3


def test_it_runs_in_order_and_only_when_told() -> None:
    device = DelayedDevice()
    source, destination = torch.arange(3), torch.arange(3)
    ran = list[str]()
    device.copy(destination, source)
    assert destination.tolist() == [POISON] * 3
    copied = device.record()
    kernel = device.launch(lambda: ran.append("kernel"))
    source.fill_(8)  # too early
    assert not copied.done()
    copied.wait()
    copied.wait()
    assert copied.done()
    assert destination.tolist() == [8, 8, 8]
    assert not ran
    assert not kernel.done()
    assert not device.record().done()
    device.run(5)
    assert ran == ["kernel"]
    assert kernel.done()
    assert device.record().done()
    assert device.num_done == 2


def test_a_value_is_there_for_work_behind_it_and_for_the_host_once_it_is_done() -> None:
    device = DelayedDevice()
    first = device.launch(lambda: 20, "first")
    second = device.launch(lambda: first.value() + 1)
    with pytest.raises(SpecGrammarError, match="value of 'first' was read before it was done"):
        first.value()
    with pytest.raises(SpecGrammarError, match="value of launched work"):
        second.value()
    assert second.wait() == 21
    assert first.value() == 20
    failing = device.launch(lambda: 1 // 0)
    behind = device.launch(lambda: "goes on")
    assert behind.wait() == "goes on"
    for ask in (failing.value, failing.wait):
        with pytest.raises(ZeroDivisionError):
            ask()


def test_work_ahead_of_a_copy_sees_memory_as_it_was_and_the_host_does_not() -> None:
    device = DelayedDevice()
    buffer, seen = torch.zeros(1), list[float]()
    for value in (1.0, 2.0):
        device.launch(lambda: seen.append(buffer.item()))
        device.copy(buffer, torch.tensor([value]))
    device.launch(lambda: seen.append(buffer.item()))
    device.launch(lambda: buffer.fill_(7))
    device.launch(lambda: seen.append(buffer.item()))
    for _ in range(3):
        assert buffer.isnan().all()
        device.run()
    assert seen == [0.0, 1.0]
    assert buffer.isnan().all()
    device.run_all()
    assert seen == [0.0, 1.0, 2.0, 7.0]
    assert buffer.item() == 7


def test_work_may_launch_and_copy_but_not_wait_for_it() -> None:
    device = DelayedDevice()
    buffer, waited = torch.zeros(1), list[Event]()

    def work() -> None:
        device.copy(buffer, torch.ones(1))
        waited.append(device.record())
        waited[0].wait()

    launched = device.launch(work)
    with pytest.raises(SpecGrammarError, match="waits for what is enqueued behind it"):
        launched.wait()
    assert buffer.isnan().all()
    assert not waited[0].done()
    waited[0].wait()
    assert buffer.item() == 1


def test_labelled_work_is_observed() -> None:
    device = DelayedDevice()
    labels = list[str]()
    device.on_work = lambda label, begin, end: labels.append(label if begin <= end else "never")
    device.launch(lambda: None, "forward")
    device.launch(lambda: None)
    device.launch(lambda: 1 // 0, "failing")
    assert labels == []
    device.run_all()
    assert labels == ["forward", "failing"]


@given(st.data())
def test_a_schedule_shows_every_prefix_and_only_prefixes(data: st.DataObject) -> None:
    """Whatever the schedule, the host sees a prefix of the stream's work that only grows."""
    device = DelayedDevice(schedule=lambda num_pending: data.draw(st.integers(0, num_pending)))
    ran = list[int]()
    known, num_launched = 0, 0
    events = list[tuple[int, Event]]()
    for call in data.draw(st.lists(st.sampled_from(["launch", "copy", "record", "done", "wait"]), max_size=12)):
        if call == "launch":
            device.launch(lambda i=num_launched: ran.append(i))  # type: ignore[misc]  # mypy cannot infer it
            num_launched += 1
        elif call == "copy":
            device.copy(torch.empty(1), torch.zeros(1))
        elif call == "record":
            events.append((num_launched, device.record()))
        elif events:
            behind, event = data.draw(st.sampled_from(events))
            if call == "wait":
                event.wait()
            assert not event.done() or len(ran) >= behind
        assert ran == list(range(len(ran)))
        assert known <= len(ran) <= num_launched
        known = len(ran)
    device.run_all()
    assert ran == list(range(num_launched))


@pytest.mark.parametrize("is_guarded", [True, False])
def test_it_shows_a_bitmask_slot_that_is_reused_before_the_mask_was_applied(is_guarded: bool) -> None:
    """Where work reads the host's rows in place, the slot's guard must be behind that work."""
    device = DelayedDevice(shares_host_memory=True)
    ring = BitmaskRing(device, 1, num_slots=1)
    applied = list[int]()
    for step in (1, 2):
        slot = ring.acquire(1)
        slot.rows[0] = np.int32(step)
        rows = slot.tensors(1).device_rows
        device.launch(lambda rows=rows: applied.append(int(rows[0])))  # type: ignore[misc]
        slot.release(device.record() if is_guarded else None)
    device.run_all()
    assert applied == ([1, 2] if is_guarded else [2, 2])
