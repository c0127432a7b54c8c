"""Masks with a row for each row of the logits, as sglang has them where it does not speculate."""

from __future__ import annotations

from typing import Any

import torch

from specgrammar.grammar.apply_on_cpu import apply_on_cpu


def allocate_rows(vocab_size: int, num_rows: int) -> torch.Tensor:
    """Rows that allow everything, int32 `[num_rows, ceil(vocab_size / 32)]`, pinned where that is possible."""
    shape = (num_rows, -(-vocab_size // 32))
    return torch.full(shape, -1, dtype=torch.int32, pin_memory=torch.cuda.is_available())


def move_rows(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
    """The rows on a device; the copy is asynchronous where they are pinned."""
    return vocab_mask.to(device, non_blocking=True)


def apply_rows(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Set what row i forbids to -inf in row i of the logits, in place.

    Args:
        logits: float `[num_rows, columns]`; columns that the rows do not speak of stay as they are.
        vocab_mask: int32 `[num_rows, words]` on the same device.
    """
    columns = min(logits.shape[1], 32 * vocab_mask.shape[1])
    if logits.device.type == "cpu":
        apply_on_cpu(logits, vocab_mask.numpy(), list(range(len(vocab_mask))), columns)
    else:
        from specgrammar.grammar import kernels

        owners = torch.arange(len(vocab_mask), dtype=torch.int32, device=logits.device)
        kernels.apply_rows(logits, vocab_mask, owners, columns)
