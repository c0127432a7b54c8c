"""The CPU stream: in order, aside, and gone when it should be."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.staging import Event
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import device_for


@pytest.fixture
def stream() -> Iterator[CpuStream]:
    made = CpuStream()
    yield made
    made.close()


class Gate:
    """Work that waits until the host lets it go on."""

    def __init__(self, stream: CpuStream) -> None:
        self._open = threading.Event()
        self.launched = stream.launch(self._open.wait, "gate")

    def open(self) -> None:
        self._open.set()


def test_the_host_goes_on_while_work_runs(stream: CpuStream) -> None:
    assert stream.runs_aside
    gate = Gate(stream)  # on an inline device this would never return
    behind = stream.launch(lambda: (threading.current_thread().name, gate.launched.value()))
    reached = stream.record()
    assert not behind.done()
    assert not reached.done()
    with pytest.raises(SpecGrammarError, match="value of 'gate' was read before it was done"):
        gate.launched.value()
    with pytest.raises(SpecGrammarError, match="value of launched work"):
        behind.value()
    gate.open()
    assert behind.wait() == ("specgrammar-cpu-stream", True)
    assert behind.value() == behind.wait()
    reached.wait()
    assert behind.done()
    assert reached.done()


def test_a_launch_hands_the_gil_over(stream: CpuStream) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a host in Python keeps the GIL
    try:
        assert all(stream.launch(lambda: None).begun.done() for _ in range(20))
    finally:
        sys.setswitchinterval(interval)


def test_copies_are_done_in_order_with_the_rest(stream: CpuStream) -> None:
    source, destination = torch.zeros(3, dtype=torch.int64), torch.full((3,), -1)
    gate = Gate(stream)
    stream.launch(lambda: source.fill_(7))
    stream.copy(destination, source)
    copied = stream.record()
    stream.launch(lambda: source.fill_(8))
    assert destination.tolist() == [-1] * 3
    gate.open()
    copied.wait()
    assert destination.tolist() == [7] * 3
    with pytest.raises(RuntimeError, match="expand"):
        stream.copy(destination, torch.zeros(2))


def test_an_event_is_reached_before_what_comes_later(stream: CpuStream) -> None:
    assert stream.record().done()  # nothing was enqueued
    first = stream.launch(lambda: None)
    event = stream.record()
    gate = Gate(stream)
    event.wait()
    assert first.done()
    assert not gate.launched.done()
    gate.open()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_is_its_own_works(stream: CpuStream, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("in the work")

    failing = stream.launch(fail)
    behind = stream.launch(failing.value)
    assert stream.launch(lambda: "goes on").wait() == "goes on"
    for launched in (failing, behind):
        for ask in (launched.value, launched.wait):
            with pytest.raises(error, match="in the work"):
                ask()


def test_work_cannot_wait_for_what_is_behind_it(stream: CpuStream) -> None:
    def work() -> None:
        stream.launch(lambda: None).wait()

    with pytest.raises(SpecGrammarError, match="waits for what is enqueued behind it"):
        stream.launch(work).wait()


def test_work_sees_the_number_of_threads_of_who_launched_it(stream: CpuStream) -> None:
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 3, 2):
            torch.set_num_threads(num_threads)
            assert stream.launch(torch.get_num_threads).wait() == num_threads
    finally:
        torch.set_num_threads(before)


def test_labelled_work_is_observed_before_it_is_done(stream: CpuStream) -> None:
    seen = list[tuple[str, bool]]()
    stream.on_work = lambda label, begin, end: seen.append((label, begin <= end))
    stream.launch(lambda: None, "forward").wait()
    assert seen == [("forward", True)]
    stream.launch(lambda: None).wait()
    failing = stream.launch(lambda: 1 // 0, "failing")
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    assert seen == [("forward", True), ("failing", True)]


def test_nothing_of_finished_work_is_kept(stream: CpuStream) -> None:
    tensor = torch.zeros(3)
    argument, launched = weakref.ref(tensor), stream.launch(lambda kept=tensor: kept + 1)  # type: ignore[misc]
    result = weakref.ref(launched.wait())
    stream.launch(lambda: None).wait()
    del tensor
    assert argument() is None
    assert result() is not None
    del launched
    assert result() is None


def test_it_ends_with_its_last_reference() -> None:
    stream = CpuStream()
    thread = stream.launch(threading.current_thread).wait()
    assert thread.daemon
    del stream
    gc.collect()
    assert not thread.is_alive()


def test_work_may_hold_the_last_reference() -> None:
    stream = CpuStream()
    thread = stream.launch(threading.current_thread).wait()
    gate = Gate(stream)
    stream.launch(lambda kept=stream: kept.torch_device)  # type: ignore[misc]
    del stream
    gate.open()
    thread.join()


def test_closing_finishes_what_was_enqueued() -> None:
    stream = CpuStream()
    gate = Gate(stream)
    behind = stream.launch(lambda: 5)
    gate.open()
    stream.close()
    stream.close()
    assert behind.done()
    assert behind.value() == 5
    assert stream.record().done()
    with pytest.raises(SpecGrammarError, match="was closed; make a new"):
        stream.launch(lambda: None)


def test_the_end_of_the_process_waits_for_work_and_a_fork_has_no_stream() -> None:
    program = """
import os, time
from specgrammar.errors import SpecGrammarError
from specgrammar.runtime.cpu_stream import CpuStream
stream = CpuStream()
if os.fork() == 0:
    try:
        stream.launch(lambda: print("runs", flush=True))
    except SpecGrammarError as error:
        print(error, flush=True)
    raise SystemExit  # its end does not wait for the parent's thread
os.wait()
stream.launch(lambda: (time.sleep(0.2), print("done", flush=True)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "this CPU stream belongs to another process, which was forked; make a new CpuStream()",
        "done",
    ]
    assert done.stderr == ""


@given(st.lists(st.sampled_from(["launch", "copy", "record", "wait"]), max_size=30))
def test_whatever_is_enqueued_runs_in_order(calls: list[str]) -> None:
    stream = device_for("cpu-stream")
    assert isinstance(stream, CpuStream)
    written = torch.full((30,), -1)
    num_launched = 0
    events = list[tuple[int, Event]]()
    for call in calls:
        if call == "launch":
            # Each writes how many had written before it.
            stream.launch(
                lambda i=num_launched: written[i : i + 1].copy_((written >= 0).sum())  # type: ignore[misc]
            )
            num_launched += 1
        elif call == "copy":
            stream.copy(written[num_launched : num_launched + 1], torch.tensor([num_launched]))
            num_launched += 1
        elif call == "record":
            events.append((num_launched, stream.record()))
        elif events:
            num_before, event = events.pop()
            event.wait()
            assert written[:num_before].tolist() == list(range(num_before))
    stream.close()
    assert written[:num_launched].tolist() == list(range(num_launched))
