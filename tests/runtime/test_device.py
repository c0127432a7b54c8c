"""Devices by name, and the promises of the inline one."""

from __future__ import annotations

import pytest
import torch

from specgrammar.errors import ConfigError
from specgrammar.runtime.device import InlineDevice, device_for


def test_the_cpu_is_an_inline_device() -> None:
    device = device_for("cpu")
    assert isinstance(device, InlineDevice)
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


@pytest.mark.parametrize("name", ["quantum", "", "cuda:99", "meta", "cpu:x"])
def test_what_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="use"):
        device_for(name)
