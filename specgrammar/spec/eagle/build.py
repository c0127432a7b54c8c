"""From the candidates of a grown tree to what is verified: the best nodes, in order, with links.

On an accelerator one kernel does it (`build_kernels`); what it has to give is written down here in torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BuiltTrees:
    """Trees of N nodes each, as verification wants them; int64 `[bs, N]`, -1 for none.

    Attributes:
        tokens: node 0 is the root; -1 for padding, which lies behind all other nodes.
        parents: node numbers.
        next_token: first children.
        next_sibling: next children of the same parent.
    """

    tokens: Tensor
    parents: Tensor
    next_token: Tensor
    next_sibling: Tensor


def build_trees(roots: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor, num_nodes: int) -> BuiltTrees:
    """Keep each root and its best `num_nodes - 1` candidates, in their order; never waits for the device.

    Args:
        roots: int64 `[bs]`.
        tokens: int64 `[bs, C]`, the candidates; parents come before their children.
        parents: int64 `[bs, C]`, numbers of candidates, -1 for children of the root.
        scores: float32 `[bs, C]`, no candidate's above its parent's; -inf for one that is no draft. Of equal
            scores the first is kept.
        num_nodes: N; places that no candidate fills are padding.
    """
    from specgrammar.spec.eagle.build_kernels import MAX_CANDIDATES, build_trees_triton

    if roots.device.type == "cpu" or max(tokens.shape[1], num_nodes) > MAX_CANDIDATES:
        return build_trees_torch(roots, tokens, parents, scores, num_nodes)
    return build_trees_triton(roots, tokens, parents, scores, num_nodes)


def build_trees_torch(
    roots: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor, num_nodes: int
) -> BuiltTrees:
    """`build_trees` in plain torch, on any device."""
    bs, num_candidates = tokens.shape
    num_kept = min(num_nodes - 1, num_candidates)
    kept = best(scores, num_kept)
    is_node = scores.gather(1, kept) > -torch.inf
    kept = torch.where(is_node, kept, num_candidates).sort(dim=1).values  # padding goes to the end
    # The number that each candidate gets. One more for the places that are padding; the last is the root's.
    number = torch.full((bs, num_candidates + 2), -1, dtype=torch.int64, device=tokens.device)
    places = torch.arange(1, num_kept + 1, device=tokens.device).expand(bs, -1)
    number.scatter_(1, kept, places)
    number[:, num_candidates], number[:, num_candidates + 1] = -1, 0
    above = torch.where(parents < 0, num_candidates + 1, parents)
    padded = torch.nn.functional.pad(torch.stack((tokens, number.gather(1, above))), (0, 1), value=-1)
    kept_tokens, kept_parents = padded.gather(2, kept.expand(2, -1, -1)).unbind(0)
    no_node = torch.full((bs, 1), -1, dtype=torch.int64, device=tokens.device)
    rest = no_node.expand(-1, num_nodes - 1 - num_kept)
    all_parents = torch.cat((no_node, kept_parents, rest), dim=1)
    return BuiltTrees(
        torch.cat((roots[:, None], kept_tokens, rest), dim=1), all_parents, *links_of(all_parents)
    )


def links_of(parents: Tensor) -> tuple[Tensor, Tensor]:
    """First children and next siblings, int64 `[bs, N]` each, from parents that come before their children."""
    node = torch.arange(parents.shape[1], device=parents.device)
    # [b, i, k]: k is a child of i; or a later child of i's parent. The lowest k is the one to link to.
    is_child = parents[:, None] == node[:, None]
    is_sibling = (parents[:, None] == parents[:, :, None]) & (node > node[:, None]) & (parents >= 0)[:, :, None]
    return _lowest(is_child, node), _lowest(is_sibling, node)


def best(scores: Tensor, count: int) -> Tensor:
    """The places of the best scores, int64 `[bs, count]`, of equal ones the first."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _lowest(is_linked: Tensor, node: Tensor) -> Tensor:
    lowest = torch.where(is_linked, node, len(node)).amin(dim=2)
    return torch.where(lowest == len(node), -1, lowest)
