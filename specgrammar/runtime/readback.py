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
        self._shapes: list[torch.Size] = []
        self._copies: list[torch.Tensor] = []
        self._on_host: tuple[NDArray[np.int32], ...] = ()

    def read(self, *results: torch.Tensor) -> tuple[NDArray[np.int32], ...]:
        """Results on the host, until others are read; waits for the device once.

        Args:
            results: int32, of any shapes.
        """
        shapes = [result.shape for result in results]
        if shapes != self._shapes:
            self._lay_out(shapes)
        for copy, result in zip(self._copies, results, strict=True):
            self._device.copy(copy, result)
        self._device.record().wait()
        return self._on_host

    def _lay_out(self, shapes: list[torch.Size]) -> None:
        """Parts of the memory for such results. Steps often have the same, and making parts takes time."""
        sizes = [shape.numel() for shape in shapes]
        if sum(sizes) > self._memory.numel():
            self._memory = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=self._device.can_pin)
        parts = torch.split(self._memory[: sum(sizes)], sizes)
        self._copies = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._on_host = tuple(copy.numpy() for copy in self._copies)
        self._shapes = shapes
