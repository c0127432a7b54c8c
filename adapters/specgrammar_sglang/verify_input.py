# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""Trees of ours as what sglang's verify forward takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.utils import is_cpu

from specgrammar.protocols.staging import Device
from specgrammar.trees.convert import qlen_mask
from specgrammar.trees.tree import HostTree


class DenseTrees:
    """The trees of a batch with `width` nodes each, on the host.

    Nodes that a request has not are padding: nothing links to them, they see the prefix and themselves, and
    stand where the root does. Their token is 0, since an embedding is looked up for it.

    Attributes:
        tokens: int64 `[bs, width]`.
        next_token: first children, int64 `[bs, width]`.
        next_sibling: next siblings, int64 `[bs, width]`.
        sees: bool `[bs, width, width]`; row i, column j: node i sees node j.
        depths: int64 `[bs, width]`.
    """

    def __init__(self, tree: HostTree, width: int) -> None:
        """Lay a valid tree out; raises TreeError for one that has more nodes."""
        tokens, next_token, next_sibling = tree.to_dense(width)
        self.tokens = torch.from_numpy(np.maximum(tokens, 0))
        self.next_token = torch.from_numpy(next_token)
        self.next_sibling = torch.from_numpy(next_sibling)
        sees = qlen_mask(tree, width)
        self.sees = torch.from_numpy(sees)
        depths = sees.sum(-1, dtype=np.int64) - 1
        self.depths = torch.from_numpy(np.where(tokens >= 0, depths, 0))

    @property
    def links(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What sglang's `GrammarTree` is made of."""
        return self.next_token, self.next_sibling, self.tokens

    def verify_input(self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, device: Device) -> Any:
        """Upload them as sglang's verify input.

        Args:
            seq_lens: int64 `[bs]` on the device, tokens in the KV cache.
            seq_lens_cpu: the same on the host.
            device: where the forward runs.
        """
        bs, width = self.tokens.shape
        upload = _Upload(device)
        sees = upload(self.sees)
        depths = upload(self.depths)
        return NgramVerifyInput(
            draft_token=upload(self.tokens).view(-1),
            custom_mask=sees.view(-1) if is_cpu() else _full_mask(sees, seq_lens_cpu.tolist()),
            positions=(seq_lens[:, None] + depths).view(-1),
            retrieve_index=torch.arange(bs * width, device=device.torch_device).view(bs, width),
            retrieve_next_token=upload(self.next_token),
            retrieve_next_sibling=upload(self.next_sibling),
            draft_token_num=width,
        )


class _Upload:
    """Asynchronous copies; torch keeps pinned memory until they are done."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.pin_memory() if self._device.can_pin else tensor
        return pinned.to(self._device.torch_device, non_blocking=True)


def _full_mask(sees: torch.Tensor, prefix_lens: list[int]) -> torch.Tensor:
    """FULL_MASK, flat: each request's prefix, which all its nodes see, then what they see of each other."""
    width = sees.shape[-1]
    parts = [
        torch.cat((sees.new_ones(width, length), mask), dim=1).view(-1)
        for mask, length in zip(sees, prefix_lens, strict=True)
    ]
    return torch.cat(parts)
