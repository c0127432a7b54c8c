"""Links, positions and row indices of dense trees on the device: one Triton launch, one program per request.

Importing this file needs no triton; deriving does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specgrammar.errors import TreeError
from specgrammar.trees.jit import HAS_TRITON, device_of, jit, require_triton
from specgrammar.trees.links_torch import TreeIndices, check_tree_inputs

if TYPE_CHECKING or HAS_TRITON:
    import triton
    import triton.language as tl


MAX_NODES = 2048
"""Widest tree of the kernel: it keeps one number per node in registers."""

_TILE_SIZE = 4096
"""Mask entries that a program looks at together; bounds its registers whatever the width."""


@jit
def _derive_tree_links_kernel(
    mask_ptr: tl.tensor,
    seq_lens_ptr: tl.tensor,
    num_nodes_ptr: tl.tensor,
    next_token_ptr: tl.tensor,
    next_sibling_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    retrieve_index_ptr: tl.tensor,
    width: int,
    width_block: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    # The mask is read twice, a tile at a time: by columns, which gives every node's parent, and by rows, to
    # compare some nodes (`this`) with the parents of all.
    request = tl.program_id(0).to(tl.int64)
    num_nodes = width
    if num_nodes_ptr is not None:
        num_nodes = tl.minimum(tl.load(num_nodes_ptr + request).to(tl.int32), width)
    mask_ptr += request * width * width
    node = tl.arange(0, width_block)

    parent = tl.full([width_block], -1, tl.int32)
    for start in range(0, width, tile):
        column = start + tl.arange(0, tile)
        is_pair = (column[None, :] < node[:, None]) & (node[:, None] < num_nodes)
        sees = tl.load(mask_ptr + node[:, None] * width + column[None, :], mask=is_pair, other=0) != 0
        parent = tl.maximum(parent, tl.max(tl.where(sees, column[None, :], -1), axis=1))

    seq_len = tl.load(seq_lens_ptr + request).to(tl.int64)
    for start in range(0, width, tile):
        this = start + tl.arange(0, tile)
        is_pair = (node[None, :] < this[:, None]) & (this[:, None] < num_nodes)
        sees = tl.load(mask_ptr + this[:, None] * width + node[None, :], mask=is_pair, other=0) != 0
        depth = tl.sum(sees.to(tl.int32), axis=1)
        parent_of_this = tl.max(tl.where(sees, node[None, :], -1), axis=1)

        is_child = parent[:, None] == this[None, :]
        first_child = tl.min(tl.where(is_child, node[:, None], width_block), axis=0)
        is_next = (
            (parent[:, None] == tl.expand_dims(parent_of_this, 0))
            & (parent[:, None] >= 0)
            & (node[:, None] > this[None, :])
        )
        next_sibling = tl.min(tl.where(is_next, node[:, None], width_block), axis=0)

        place = request * width + this
        exists = this < width
        tl.store(
            next_token_ptr + place,
            tl.where(first_child < width_block, first_child, -1).to(tl.int64),
            mask=exists,
        )
        tl.store(
            next_sibling_ptr + place,
            tl.where(next_sibling < width_block, next_sibling, -1).to(tl.int64),
            mask=exists,
        )
        tl.store(positions_ptr + place, seq_len + depth, mask=exists)
        tl.store(retrieve_index_ptr + place, place, mask=exists)


def derive_tree_links_triton(
    mask: torch.Tensor, seq_lens: torch.Tensor, num_nodes: torch.Tensor | None = None
) -> TreeIndices:
    """Derive links, positions and row indices in one launch on the current stream, without waiting.

    The result is that of `links_torch.derive_tree_links_torch`. The launch may be captured in a graph.

    Args:
        mask: bool `[bs, N, N]`, contiguous, N at most `MAX_NODES`, as for the torch reference.
        seq_lens: int32 or int64 `[bs]`, contiguous, on the mask's device.
        num_nodes: int32 or int64 `[bs]`, contiguous, on the mask's device; None: all N.

    Raises:
        TreeError: an argument is not as stated, or is where the kernel cannot run.
        ConfigError: triton is not installed.
    """
    require_triton("deriving tree links on the device")
    check_tree_inputs(mask, seq_lens, num_nodes)
    if mask.device.type == "cpu" and isinstance(_derive_tree_links_kernel, triton.JITFunction):
        raise TreeError(
            "mask is on the CPU, where Triton only runs with TRITON_INTERPRET=1 set before it is imported; "
            "use derive_tree_links on NumPy arrays, or derive_tree_links_torch"
        )
    for name, tensor in (("mask", mask), ("seq_lens", seq_lens), ("num_nodes", num_nodes)):
        if tensor is not None and not tensor.is_contiguous():
            raise TreeError(f"{name} has strides {tensor.stride()}; pass a contiguous tensor")
    bs, width, _ = mask.shape
    if width > MAX_NODES:
        raise TreeError(
            f"trees of {width} nodes are more than the kernel's {MAX_NODES}; cut them, "
            "or use derive_tree_links_torch"
        )
    result = TreeIndices(*torch.empty((4, bs, width), dtype=torch.int64, device=mask.device))
    if bs == 0:
        return result
    width_block = triton.next_power_of_2(width)
    tile = min(width_block, _TILE_SIZE // width_block)
    with device_of(mask):
        _derive_tree_links_kernel[(bs,)](
            mask.view(torch.uint8), seq_lens, num_nodes, *result, width, width_block=width_block, tile=tile
        )
    return result
