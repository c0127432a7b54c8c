"""Results that are read back into memory that stays."""

from __future__ import annotations

import torch

from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.readback import Readback
from specgrammar.testing.delayed_device import DelayedDevice


def test_a_result_is_read_when_its_copy_is_done() -> None:
    """The delayed device poisons what is read before."""
    device = DelayedDevice()
    readback = Readback(device)
    for shape in ((2, 3), (4, 5), (1, 2), (0, 7), (20,)):
        made = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
        result = torch.zeros_like(made)
        device.launch(lambda made=made, result=result: result.copy_(made))  # type: ignore[misc]
        assert readback.read(result).tolist() == made.tolist()


def test_its_memory_is_used_again_and_grows() -> None:
    readback = Readback(InlineDevice())
    first = readback.read(torch.tensor([1, 2, 3], dtype=torch.int32))
    second = readback.read(torch.tensor([[4], [5]], dtype=torch.int32))
    assert first.tolist() == [4, 5, 3]
    assert second.tolist() == [[4], [5]]
    third = readback.read(torch.arange(9, dtype=torch.int32))
    assert third.tolist() == list(range(9))
    assert first.tolist() == [4, 5, 3]


def test_what_is_read_is_a_copy() -> None:
    result = torch.tensor([1, 2], dtype=torch.int32)
    found = Readback(InlineDevice()).read(result)
    found[:] = 7
    assert result.tolist() == [1, 2]
