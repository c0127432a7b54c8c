"""Devices by name, and the promises of the inline one."""

from __future__ import annotations

import pytest
import torch

from specgrammar.errors import ConfigError
from specgrammar.grammar.kernels import apply_rows
from specgrammar.runtime import device as device_module
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
