"""A draft tree as the dense tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.trees.chain import chain_links
from specgrammar.trees.convert import qlen_mask
from specgrammar.trees.ragged import dense_slots
from specgrammar.trees.tree import DraftTree, HostTree


@dataclass(frozen=True, eq=False)
class TreeLayout:
    """Trees padded to N nodes each, on the model's device.

    Attributes:
        ids: int64 `[bs, N]`, 0 where there is no token.
        ancestors: bool `[bs, N, N]`; row i, column j: node i sees node j. Padding sees itself alone.
        sizes: int64 `[bs]` on the host, the nodes of each request.
    """

    ids: torch.Tensor
    ancestors: torch.Tensor
    sizes: NDArray[np.int64]

    @property
    def depths(self) -> torch.Tensor:
        """Each node's distance from its root, int64 `[bs, N]`; padding has 0."""
        return self.ancestors.sum(dim=-1) - 1


def layout_of_tree(tree: DraftTree, device: torch.device) -> TreeLayout:
    """Lay out a draft tree; one that lives on a device is not copied to the host."""
    sizes = np.diff(tree.cu_nodes)
    width = int(sizes.max())
    slots = dense_slots(tree.cu_nodes, width)
    shape = (len(sizes), width)
    host = tree.host or _host_links(tree)
    if host is not None:
        ancestors = torch.from_numpy(qlen_mask(host, width)).to(device)
    else:
        next_token = _dense(tree.device.retrieve_next_token, slots, shape, device)
        next_sibling = _dense(tree.device.retrieve_next_sibling, slots, shape, device)
        ancestors = _ancestors(next_token, next_sibling)
    tokens = tree.host.draft_tokens if tree.host is not None else tree.device.draft_tokens
    return TreeLayout(_dense(tokens, slots, shape, device).clamp_(min=0), ancestors, sizes)


def layout_of_chains(chains: Sequence[Sequence[int]], device: torch.device) -> TreeLayout:
    """Lay out one chain of tokens per request; none is empty."""
    sizes = np.array([len(chain) for chain in chains], dtype=np.int64)
    width = int(sizes.max())
    ids = torch.tensor([[*chain, *[0] * (width - len(chain))] for chain in chains], device=device)
    ancestors = torch.ones(width, width, dtype=torch.bool, device=device).tril_()
    return TreeLayout(ids, ancestors.expand(len(chains), width, width), sizes)


def _host_links(tree: DraftTree) -> HostTree | None:
    """The links of a device's tree where the host knows them anyway; the tokens are left out."""
    next_token, next_sibling = tree.device.retrieve_next_token, tree.device.retrieve_next_sibling
    if isinstance(next_token, torch.Tensor) or isinstance(next_sibling, torch.Tensor):
        return None
    chain_next, chain_sibling = chain_links(tree.cu_nodes)
    return HostTree(
        tree.cu_nodes,
        np.zeros(tree.num_nodes, dtype=np.int64),
        chain_next if next_token is None else next_token,
        chain_sibling if next_sibling is None else next_sibling,
    )


def _dense(
    flat: torch.Tensor | NDArray[np.int64] | None,
    slots: NDArray[np.int64],
    shape: tuple[int, int],
    device: torch.device,
) -> torch.Tensor:
    """A flat array over nodes as a new int64 tensor `[bs, N]` on the device, -1 where a request has no node."""
    dense = torch.full((shape[0] * shape[1],), -1, dtype=torch.int64, device=device)
    values = torch.as_tensor(flat, device=device)
    if len(slots) == len(dense):
        dense.copy_(values)
    else:
        dense[torch.from_numpy(slots).to(device)] = values
    return dense.view(shape)


def _ancestors(next_token: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """`qlen_mask` on the device, from dense links `[bs, N]`: pointers are doubled, so a few launches do."""
    bs, num_nodes = next_token.shape
    nodes = torch.arange(num_nodes + 1, device=next_token.device).expand(bs, -1)

    def inverse(links: torch.Tensor) -> torch.Tensor:
        """Who links to each node (itself if nobody does); absent links are written behind the last column."""
        target = torch.where(links >= 0, links, num_nodes)
        return nodes.scatter(1, target, nodes[:, :num_nodes])[:, :num_nodes]

    rounds = range(num_nodes.bit_length())
    first_sibling, pointer = inverse(next_sibling), inverse(next_token)
    for _ in rounds:
        first_sibling = first_sibling.gather(1, first_sibling)
    pointer = pointer.gather(1, first_sibling)
    seen = torch.eye(num_nodes, dtype=torch.bool, device=next_token.device).repeat(bs, 1, 1)
    for _ in rounds:
        seen |= seen.gather(1, pointer[:, :, None].expand(-1, -1, num_nodes))
        pointer = pointer.gather(1, pointer)
    return seen
