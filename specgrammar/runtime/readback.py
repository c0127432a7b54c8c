"""Memory that a device's results are copied to."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.staging import Device


class Readback:
    """One piece of host memory, page-locked where that exists, for what each step reads back.

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

    def read(self, *results: torch.Tensor) -> tuple[NDArray[np.int32], ...]:
        """Results on the host, until others are read; waits for the device once.

        Args:
            results: int32, of any shapes.
        """
        sizes = [result.numel() for result in results]
        if sum(sizes) > self._memory.numel():
            self._memory = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=self._device.can_pin)
        parts = torch.split(self._memory[: sum(sizes)], sizes)
        copies = [part.view(result.shape) for part, result in zip(parts, results, strict=True)]
        for copy, result in zip(copies, results, strict=True):
            self._device.copy(copy, result)
        self._device.record().wait()
        return tuple(copy.numpy() for copy in copies)
