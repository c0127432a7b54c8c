"""Keys and values of a batch in preallocated slots, read and written through a window.

Request r of a batch occupies row r; its committed tokens lie in slots `[0, length)`. The lengths of the rows
differ, so one forward writes its nodes behind the longest row, into the same slots of every row, and the
attention mask hides the gap. What is accepted moves down to the end of its own row afterwards.

Planes (one layer's keys, or its values) of equal shape share one tensor `[planes, rows, heads, slots,
head_dim]`, so that moving nodes costs two tensor operations whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from specgrammar_transformers.recording import record

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


def members_of(planes: Sequence[tuple[PlaneShape, PlaneShape]]) -> dict[PlaneShape, list[int]]:
    """Which planes share a stack: plane 2i holds the keys of layer i, plane 2i + 1 its values."""
    flat = [plane for pair in planes for plane in pair]
    return {shape: [i for i, plane in enumerate(flat) if plane == shape] for shape in dict.fromkeys(flat)}


def window_layers(
    members: Mapping[PlaneShape, list[int]], stacks: Sequence[torch.Tensor], num_new: int
) -> list[CacheLayerMixin | LinearAttentionCacheLayerMixin]:
    """The layers of a cache over some slots, of which a forward writes the last `num_new`.

    Args:
        members: see `members_of`.
        stacks: as many as `members`, `[planes, rows, heads, slots, head_dim]`.
        num_new: slots that are written, one for each node of a request.
    """
    layers = [_WindowLayer() for _ in range(sum(map(len, members.values())) // 2)]
    for indices, stack in zip(members.values(), stacks, strict=True):
        start = stack.shape[3] - num_new
        for index, plane, new in zip(indices, stack.unbind(0), stack[:, :, :, start:].unbind(0), strict=True):
            layer = layers[index // 2]
            layer.start = start
            if index % 2 == 0:
                layer.keys, layer.new_keys = plane, new
            else:
                layer.values, layer.new_values = plane, new
    return [*layers]


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
        super().__init__(layers=[_WindowLayer() for _ in planes])
        self.members = members_of(planes)
        self._num_rows = num_rows
        self._capacity = _FIRST_CAPACITY
        self._used = 0  # no slot at or above it was ever written
        self._stacks = {shape: self._new_stack(shape) for shape in self.members}
        on_cpu = all(stack.device.type == "cpu" for stack in self._stacks.values())
        self._keep: Callable[..., object] = _recorded_keep(len(self._stacks)) if on_cpu else _keep_nodes

    def window(self, first_row: int, num_rows: int, start: int, num_nodes: int) -> list[torch.Tensor]:
        """The stacks of some rows up to slot `start + num_nodes`, which a forward writes from `start` on."""
        end = start + num_nodes
        self._reserve(end)
        return [stack[:, first_row : first_row + num_rows, :, :end] for stack in self._stacks.values()]

    def open_window(self, first_row: int, num_rows: int, start: int, num_nodes: int) -> None:
        """Let this cache's next forward see that window."""
        stacks = self.window(first_row, num_rows, start, num_nodes)
        self.layers = window_layers(self.members, stacks, num_nodes)

    def keep(self, lengths: torch.Tensor, rows: torch.Tensor, nodes: torch.Tensor, start: int) -> None:
        """Move nodes of a window down to the ends of their rows, which get longer by them.

        Args:
            lengths: int64 `[num_rows]`, tokens of each row; changed in place.
            rows: int64 `[n]` on the host, without repetition.
            nodes: int64 `[n, any]` on the host, the nodes of each in path order, -1 behind the last.
            start: the first slot of the window.
        """
        self._keep(lengths, rows, nodes, torch.tensor(start), *self._stacks.values())

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
        size = (len(self.members[shape]), self._num_rows, shape.heads, self._capacity, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)


def _keep_nodes(
    lengths: torch.Tensor, rows: torch.Tensor, nodes: torch.Tensor, start: torch.Tensor, *stacks: torch.Tensor
) -> torch.Tensor:
    """See `SlotCache.keep`; returns `lengths`."""
    item, place = (nodes >= 0).nonzero().unbind(1)
    row = rows[item]
    source, target = start + nodes[item, place], lengths.cpu()[row] + place
    moved = source != target
    row, source, target = row[moved], source[moved], target[moved]
    for stack in stacks:
        at, old, new = row.to(stack.device), source.to(stack.device), target.to(stack.device)
        stack[:, at, :, new] = stack[:, at, :, old]
    lengths[rows.to(lengths.device)] += (nodes >= 0).sum(1).to(lengths.device)
    return lengths


@cache
def _recorded_keep(num_stacks: int) -> Callable[..., object]:
    """`_keep_nodes` on a CPU as one call without the interpreter, which its dozen operations would wait for.

    Between two steps the host's Python has it for a millisecond: keeping nodes beside that took 4 ms, not 0.6.
    """
    stacks = [torch.zeros(2, 3, 1, 8, 2) for _ in range(num_stacks)]
    rows, nodes = torch.tensor([0, 2]), torch.tensor([[0, 2, -1], [0, -1, -1]])
    example = (torch.tensor([1, 2, 3]), rows, nodes, torch.tensor(4), *stacks)
    with torch.no_grad():
        return record(_keep_nodes, example)
