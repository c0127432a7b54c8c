"""Devices by name, and the promises of the inline one."""

from __future__ import annotations

import time

import pytest
import torch

from specgrammar.errors import ConfigError
from specgrammar.grammar.kernels import apply_rows
from specgrammar.runtime import device as device_module
from specgrammar.runtime.accelerator import WorkClock
from specgrammar.runtime.device import InlineDevice, device_for


def test_the_cpu_is_an_inline_device() -> None:
    device = device_for("cpu")
    assert isinstance(device, InlineDevice)
    assert device.shares_host_memory
    source, destination = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    device.copy(destination, source)
    source.fill_(9)
    assert destination.tolist() == [0, 1, 2]
    event = device.record()
    event.wait()
    assert event.done()


def test_inline_work_is_done_when_it_is_launched() -> None:
    device, ran = InlineDevice(), list[str]()
    device.on_work = lambda label, begin, end: ran.append(label if begin <= end else "never")

    def work() -> int:
        ran.append("work")
        return 5

    launched = device.launch(work, "label")
    assert ran == ["work", "label"]
    assert launched.done()
    assert launched.value() == launched.wait() == 5
    assert not device.runs_aside
    failing = device.launch(lambda: 1 // 0)
    for ask in (failing.value, failing.wait):
        with pytest.raises(ZeroDivisionError):
            ask()


class Tick:
    """A timed event as an accelerator's, at so many milliseconds; it is reached when somebody sets it."""

    def __init__(self, ms: float, *, reached: bool = True) -> None:
        self.ms, self.reached = ms, reached

    def synchronize(self) -> None:
        assert self.reached

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, end: Tick) -> float:
        return end.ms - self.ms


def test_an_accelerators_work_is_reported_in_the_hosts_time_once_it_is_done() -> None:
    before = time.perf_counter()
    clock = WorkClock(Tick(1000.0))
    after = time.perf_counter()
    ends = [Tick(1060.0, reached=False), Tick(1070.0)]
    clock.expect("forward", Tick(1010.0), ends[0])
    clock.expect("draft", Tick(1065.0), ends[1])
    seen = list[tuple[str, float, float]]()

    def observe(label: str, begin: float, end: float) -> None:
        seen.append((label, begin, end))

    clock.report(observe)
    assert seen == []
    ends[0].reached = True
    clock.report(observe)
    clock.report(observe)
    assert [label for label, _, _ in seen] == ["forward", "draft"]
    assert before + 0.010 <= seen[0][1] <= after + 0.010
    assert seen[0][2] - seen[0][1] == pytest.approx(0.050)
    assert seen[1][1] - seen[0][2] == pytest.approx(0.005)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_accelerator_launches_and_times_its_work() -> None:
    device = device_for("cuda")
    seen = list[tuple[str, float, float]]()
    device.on_work = lambda *work: seen.append(work)
    matrix = torch.ones(2048, 2048, device="cuda")
    before = time.perf_counter()
    product = device.launch(lambda: matrix @ matrix, "product")
    behind = device.launch(lambda: product.value()[0, 0].clone())
    assert behind.wait().item() == 2048
    after = time.perf_counter()
    assert product.done()
    device.launch(lambda: None, "next").wait()
    assert [label for label, _, _ in seen] == ["product"]
    assert before - 0.001 <= seen[0][1] < seen[0][2] <= after + 0.001


def test_auto_is_an_accelerator_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert device_for("auto").torch_device.type == expected


@pytest.mark.parametrize("name", ["mps", "xpu", "mtia:0", "meta"])
def test_accelerators_without_what_masks_need_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}'.*streams, events, pinned memory and Triton.*use auto"):
        device_for(name)


def test_an_accelerator_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "HAS_TRITON", False)
    with pytest.raises(ConfigError, match=r"'cuda:0': .* pip install triton"):
        device_for("cuda:0")


def test_auto_is_the_cpu_where_the_accelerator_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert isinstance(device_for("auto"), InlineDevice)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_kernels_run_on_a_device_that_is_not_the_current_one() -> None:
    logits = torch.zeros(1, 32, device="cuda:1")
    rows = torch.full((1, 1), 5, dtype=torch.int32, device="cuda:1")
    apply_rows(logits, rows, torch.zeros(1, dtype=torch.int32, device="cuda:1"), 32)
    assert logits.isfinite().nonzero()[:, 1].tolist() == [0, 2]


@pytest.mark.parametrize("name", ["quantum", "", "cuda:99", "meta", "cpu:x"])
def test_what_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="use"):
        device_for(name)
