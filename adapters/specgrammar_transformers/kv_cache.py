"""Keys and values of a batch in preallocated slots, read and written through a window.

Request r of a batch occupies row r; its committed tokens lie in slots `[0, length)`. The lengths of the rows
differ, so one forward writes its nodes behind the longest row, into the same slots of every row, and the
attention mask hides the gap. What is accepted moves down to the end of its own row afterwards.

Planes (one layer's keys, or its values) of equal shape share one tensor `[planes, rows, heads, slots,
head_dim]`, so that moving nodes costs two tensor operations whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_CAPACITY = 256


@dataclass(frozen=True)
class PlaneShape:
    """What one row of one layer's keys (or values) looks like."""

    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class _WindowLayer(CacheLayerMixin):
    """One layer as attention sees it: it writes the new slots and reads all up to them."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in transformers
        self.new_keys = self.new_values = torch.empty(0)
        self.start = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.new_keys.copy_(key_states)
        self.new_values.copy_(value_states)
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slots exist before the first forward."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.start + query_length, 0

    def get_seq_length(self) -> int:
        return self.start

    def get_max_length(self) -> int:
        return -1


class SlotCache(Cache):
    """The cache that a model's attention layers are given.

    Rows are anonymous here; who owns which row and how long it is, the caller knows. All slots are finite at
    all times (masked values are multiplied by zero, and zero times NaN is NaN), hence `clear_row`.
    """

    def __init__(self, planes: Sequence[tuple[PlaneShape, PlaneShape]], num_rows: int) -> None:
        """Make room for `num_rows` rows; slots are added as windows ask for them.

        Args:
            planes: per layer, the shapes of its keys and of its values.
            num_rows: rows of the cache.
        """
        self._windows = [_WindowLayer() for _ in planes]
        super().__init__(layers=[*self._windows])
        flat = [plane for pair in planes for plane in pair]
        self._members = {
            shape: [i for i, plane in enumerate(flat) if plane == shape] for shape in dict.fromkeys(flat)
        }
        self._num_rows = num_rows
        self._capacity = _FIRST_CAPACITY
        self._used = 0  # no slot at or above it was ever written
        self._stacks = {shape: self._new_stack(shape) for shape in self._members}

    def open_window(self, first_row: int, num_rows: int, start: int, num_nodes: int) -> None:
        """Let the next forward write slots `[start, start + num_nodes)` of some rows, and read up to there."""
        end = start + num_nodes
        self._reserve(end)
        for shape, stack in self._stacks.items():
            seen = stack[:, first_row : first_row + num_rows, :, :end]
            views = zip(self._members[shape], seen.unbind(0), seen[:, :, :, start:].unbind(0), strict=True)
            for index, plane, new in views:
                layer = self._windows[index // 2]
                if index % 2 == 0:
                    layer.keys, layer.new_keys = plane, new
                else:
                    layer.values, layer.new_values = plane, new
        for layer in self._windows:
            layer.start = start

    def move_slots(self, rows: torch.Tensor, from_slots: torch.Tensor, to_slots: torch.Tensor) -> None:
        """Copy slot `from_slots[i]` of row `rows[i]` to `to_slots[i]`, all at once; int64 `[n]`."""
        if not len(rows):
            return
        for shape, stack in self._stacks.items():
            row, source, to = (index.to(shape.device) for index in (rows, from_slots, to_slots))
            stack[:, row, :, to] = stack[:, row, :, source]

    def copy_rows(self, from_rows: list[int], to_rows: list[int]) -> None:
        """Copy whole rows, all at once: `to_rows` may overlap `from_rows`."""
        for stack in self._stacks.values():
            used = stack[:, :, :, : self._used]
            used[:, to_rows] = used[:, from_rows]

    def clear_row(self, row: int) -> None:
        """Zero a row that nobody owns any more: a NaN in it must not reach the next owner."""
        for stack in self._stacks.values():
            stack[:, row, :, : self._used].zero_()

    def _reserve(self, num_slots: int) -> None:
        self._used, kept = max(self._used, num_slots), self._used
        if num_slots <= self._capacity:
            return
        self._capacity = max(num_slots, 2 * self._capacity)
        for shape, old in self._stacks.items():
            self._stacks[shape] = self._new_stack(shape)
            self._stacks[shape][:, :, :, :kept] = old[:, :, :, :kept]

    def _new_stack(self, shape: PlaneShape) -> torch.Tensor:
        size = (len(self._members[shape]), self._num_rows, shape.heads, self._capacity, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
