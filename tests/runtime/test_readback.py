"""Results that are read back into memory that stays."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.readback import Readback
from specgrammar.testing.delayed_device import DelayedDevice


def test_results_are_read_when_their_copies_are_done() -> None:
    """The delayed device poisons what is read before."""
    device = DelayedDevice()
    readback = Readback(device)
    for shape in ((2, 3), (4, 5), (1, 2), (0, 7), (20,)):
        made = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
        result, other = torch.zeros_like(made), torch.zeros(3, dtype=torch.int32)
        device.launch(partial(result.copy_, made))
        device.launch(partial(other.fill_, 5))
        assert [read.tolist() for read in readback.read(result, other)] == [made.tolist(), [5, 5, 5]]


def test_its_memory_is_used_again_and_grows() -> None:
    readback = Readback(InlineDevice())
    (first,) = readback.read(torch.tensor([1, 2, 3], dtype=torch.int32))
    (second,) = readback.read(torch.tensor([[4], [5]], dtype=torch.int32))
    assert first.tolist() == [4, 5, 3]
    assert second.tolist() == [[4], [5]]
    (third,) = readback.read(torch.arange(9, dtype=torch.int32))
    assert third.tolist() == list(range(9))
    assert first.tolist() == [4, 5, 3]


def test_results_of_several_dtypes_are_read_at_once() -> None:
    readback = Readback(InlineDevice())
    results = [
        torch.tensor([1, 65535, 3], dtype=torch.int32).to(torch.uint16),
        torch.tensor([[1 << 40, -7]]),
        torch.empty(0, dtype=torch.int32),
        torch.tensor([True]),
        torch.tensor([0.5j], dtype=torch.complex128),
    ]
    for _ in range(2):
        found = readback.read(*results)
        assert [one.dtype for one in found] == [np.uint16, np.int64, np.int32, np.bool_, np.complex128]
        assert [one.tolist() for one in found] == [[1, 65535, 3], [[1 << 40, -7]], [], [True], [0.5j]]
        results[0] = results[0].to(torch.int32).flip(0).to(torch.uint16)
        found = readback.read(*results)
        assert found[0].tolist() == [3, 65535, 1]
        results[0] = results[0].to(torch.int32).flip(0).to(torch.uint16)


def test_what_is_read_is_a_copy() -> None:
    result = torch.tensor([1, 2], dtype=torch.int32)
    (found,) = Readback(InlineDevice()).read(result)
    found[:] = 7
    assert result.tolist() == [1, 2]
