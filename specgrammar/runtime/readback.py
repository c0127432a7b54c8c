"""Memory that a device's results are copied to."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from specgrammar.protocols.staging import Device


class Readback:
    """One piece of host memory, page-locked where that exists, for a result that each step reads back.

    Fresh memory would be touched for the first time in each step, and into memory that is not page-locked the
    driver copies twice.
    """

    def __init__(self, device: Device) -> None:
        """No memory yet.

        Args:
            device: where results are.
        """
        self._device = device
        self._memory = torch.empty(0, dtype=torch.int32)

    def read(self, result: torch.Tensor) -> NDArray[Any]:
        """A result on the host, until the next one is read; waits for the device.

        Args:
            result: int32, of any shape.
        """
        if result.numel() > self._memory.numel():
            self._memory = torch.zeros(result.numel(), dtype=torch.int32, pin_memory=self._device.can_pin)
        host = self._memory[: result.numel()].view(result.shape)
        self._device.copy(host, result)
        self._device.record().wait()
        return host.numpy()
