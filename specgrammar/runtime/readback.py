"""Memory that a device's results are copied to."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from numpy.typing import NDArray

from specgrammar.protocols.staging import Device

_ALIGNMENT = 16
"""Bytes: each result begins at a multiple of them."""


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
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._copies: list[torch.Tensor] = []
        self._on_host: tuple[NDArray[Any], ...] = ()

    def read(self, *results: torch.Tensor) -> tuple[NDArray[Any], ...]:
        """Results on the host, until others are read; waits for the device once.

        Args:
            results: of any shapes and dtypes that NumPy has, which the arrays have as well.
        """
        kinds = [(result.shape, result.dtype) for result in results]
        if kinds != self._kinds:
            self._lay_out(kinds)
        for copy, result in zip(self._copies, results, strict=True):
            self._device.copy(copy, result)
        self._device.record().wait()
        return self._on_host

    def _lay_out(self, kinds: list[tuple[torch.Size, torch.dtype]]) -> None:
        """Parts of the memory for such results. Steps often have the same, and making parts takes time."""
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in kinds]
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        if ends and ends[-1] > self._memory.numel():
            self._memory = torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=self._device.can_pin)
        self._copies = [
            self._memory[begin : begin + size].view(dtype).view(shape)
            for begin, size, (shape, dtype) in zip([0, *ends], sizes, kinds, strict=False)
        ]
        self._on_host = tuple(copy.numpy() for copy in self._copies)
        self._kinds = kinds
