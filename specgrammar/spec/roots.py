"""The tree without drafts: each request's last committed token, wherever that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgrammar.protocols.spec import CommittedTokens, DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree

if TYPE_CHECKING:
    import torch


def roots_tree(batch: DecodeBatch, device: Device) -> DraftTree:
    """One node per request; with it the step is ordinary decoding.

    Where the step before is unresolved its roots are written on the device's stream.
    """
    known = [view.tokens[view.num_tokens - 1] for view in batch.requests]
    roots = HostTree.roots(known)
    if batch.unresolved is None:
        return DraftTree.from_host(batch.step, roots)
    import torch  # not above: ordinary decoding on a host's tree needs none

    unresolved = batch.unresolved
    tokens = torch.empty(len(batch), dtype=torch.int64, device=device.torch_device)
    made = device.launch(lambda: tokens.copy_(last_tokens(batch, unresolved.value(), tokens.device)), "draft")
    parts = DeviceTree(tokens, roots.retrieve_next_token, roots.retrieve_next_sibling)
    return DraftTree(batch.step, roots.cu_nodes, device=parts, made=made)


def last_tokens(batch: DecodeBatch, committed: CommittedTokens | None, device: torch.device) -> torch.Tensor:
    """Each request's last committed token, int64 `[bs]`, for work on the stream.

    Args:
        batch: whose views are from before an unresolved step.
        committed: what that step committed; None where there is none.
        device: where the result is.
    """
    import torch

    known = torch.tensor([view.tokens[view.num_tokens - 1] for view in batch.requests], device=device)
    if committed is None:
        return known
    tokens, num_tokens = committed.tokens, committed.num_tokens
    last = tokens.gather(1, (num_tokens - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(num_tokens > 0, last, known)
