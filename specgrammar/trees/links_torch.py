"""Links, positions and row indices of dense trees in plain torch: what the kernel of `kernels.py` has to give.

It runs on every device that torch has, with temporaries of `[bs, N, N]`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from specgrammar.errors import TreeError


class TreeIndices(NamedTuple):
    """What verification needs to know of dense trees; each int64 `[bs, N]`.

    Attributes:
        retrieve_next_token: first children, -1 for none.
        retrieve_next_sibling: next siblings, -1 for none.
        positions: `seq_len + depth`; padding has its root's.
        retrieve_index: `b * N + i`, the flat index of each place.
    """

    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    positions: torch.Tensor
    retrieve_index: torch.Tensor


def check_tree_inputs(mask: torch.Tensor, seq_lens: torch.Tensor, num_nodes: torch.Tensor | None) -> None:
    """Check shapes, dtypes and devices as `derive_tree_links_torch` states them, without waiting for a device.

    Raises:
        TreeError: names the argument, what it is, and what was expected.
    """
    if mask.dtype != torch.bool or mask.ndim != 3 or mask.shape[1] != mask.shape[2] or mask.shape[1] == 0:
        raise TreeError(
            f"mask is {mask.dtype} {list(mask.shape)}; expected torch.bool [bs, N, N] with N at least 1"
        )
    for name, counts in (("seq_lens", seq_lens), ("num_nodes", num_nodes)):
        if counts is None:
            continue
        if counts.dtype not in (torch.int32, torch.int64) or counts.shape != mask.shape[:1]:
            raise TreeError(
                f"{name} is {counts.dtype} {list(counts.shape)}; expected int32 or int64 [{mask.shape[0]}], "
                "one number per request"
            )
        if counts.device != mask.device:
            raise TreeError(f"{name} is on {counts.device}, but the mask is on {mask.device}; move it there")


def derive_tree_links_torch(
    mask: torch.Tensor, seq_lens: torch.Tensor, num_nodes: torch.Tensor | None = None
) -> TreeIndices:
    """Derive links, positions and row indices from who sees whom.

    Args:
        mask: bool `[bs, N, N]` (QLEN_ONLY); `mask[b, i, j]` says that node i sees node j. What a node says
            about itself or about later nodes is not looked at. It is trusted to describe trees.
        seq_lens: int32 or int64 `[bs]`, number of tokens before each root.
        num_nodes: int32 or int64 `[bs]`, how many nodes each request has; rows and columns from there on are
            padding, whatever they hold. None: all N.

    Returns:
        Tensors on the mask's device.

    Raises:
        TreeError: an argument is not as stated.
    """
    check_tree_inputs(mask, seq_lens, num_nodes)
    bs, width, _ = mask.shape
    node = torch.arange(width, device=mask.device)
    ancestors = mask & (node[None, :] < node[:, None])
    if num_nodes is not None:
        ancestors &= (node < num_nodes[:, None])[:, :, None]
    parents = torch.where(ancestors, node, -1).amax(dim=2)

    # [b, k, i]: k is a child of i; k is a later child of i's parent. The lowest k is the one to link to.
    is_child = parents[:, :, None] == node
    is_next = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, None, :] & (node[:, None] > node)
    first_child, next_sibling = (
        torch.where(is_one, node[:, None], width).amin(dim=1) for is_one in (is_child, is_next)
    )
    return TreeIndices(
        retrieve_next_token=torch.where(first_child < width, first_child, -1),
        retrieve_next_sibling=torch.where(next_sibling < width, next_sibling, -1),
        positions=seq_lens.to(torch.int64)[:, None] + ancestors.sum(dim=2),
        retrieve_index=torch.arange(bs * width, device=mask.device).view(bs, width),
    )
