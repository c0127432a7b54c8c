"""The kernel that applies bitmask rows to logits, and its checked launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specgrammar.trees.jit import HAS_TRITON, device_of, jit, require_triton

if TYPE_CHECKING or HAS_TRITON:
    import triton
    import triton.language as tl

_BLOCK = 4096


@jit
def _apply_rows_kernel(
    logits: tl.tensor,  # float [nodes, columns]
    logits_stride: int,
    bitmask: tl.tensor,  # int32 [rows, num_words]
    owners: tl.tensor,  # int32 [rows], the logits row of each, -1 for none
    num_words: int,
    columns: int,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    owner = tl.load(owners + row)
    inside = column < tl.where(owner >= 0, columns, 0)
    words = tl.load(bitmask + row.to(tl.int64) * num_words + column // 32, mask=inside, other=-1)
    illegal = ((words >> (column % 32)) & 1) == 0
    tl.store(logits + owner.to(tl.int64) * logits_stride + column, float("-inf"), mask=inside & illegal)


def apply_rows(logits: torch.Tensor, bitmask: torch.Tensor, owners: torch.Tensor, columns: int) -> None:
    """Set the illegal logits of some rows to -inf, in place.

    Args:
        logits: float `[num_nodes, >= columns]`, the last dimension contiguous.
        bitmask: int32 `[rows, num_words]`, contiguous, `32 * num_words >= columns`.
        owners: int32 `[rows]`: the logits row that each mask row is for; -1 skips the row.
        columns: columns that the mask covers; others are left alone.

    Raises:
        ValueError: a shape, dtype, stride or device that the kernel would read wrongly.
        ConfigError: triton is not installed.
    """
    require_triton("applying a mask on the device")
    rows, num_words = bitmask.shape
    if logits.dim() != 2 or logits.stride(1) != 1 or not logits.dtype.is_floating_point:
        raise ValueError(f"logits: float [nodes, columns] with contiguous rows expected, not {_about(logits)}")
    if bitmask.dtype != torch.int32 or not bitmask.is_contiguous():
        raise ValueError(f"bitmask: contiguous int32 [rows, words] expected, not {_about(bitmask)}")
    if owners.dtype != torch.int32 or owners.shape != (rows,) or not owners.is_contiguous():
        raise ValueError(f"owners: contiguous int32 [{rows}] expected, not {_about(owners)}")
    if not 0 <= columns <= min(logits.shape[1], 32 * num_words):
        raise ValueError(f"columns = {columns}: logits have {logits.shape[1]}, the mask {32 * num_words}")
    if not logits.device == bitmask.device == owners.device:
        raise ValueError(f"one device expected: {logits.device}, {bitmask.device}, {owners.device}")
    if rows and columns:
        grid = (rows, triton.cdiv(columns, _BLOCK))
        with device_of(logits):
            _apply_rows_kernel[grid](
                logits, logits.stride(0), bitmask, owners, num_words, columns, block=_BLOCK
            )


def _about(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
