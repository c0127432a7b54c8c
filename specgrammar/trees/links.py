"""Links of a draft tree, on the host: from each node's parent, or from an ancestor mask.

`links_torch.py` states the same in plain torch, `kernels.py` does it on the device in one launch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.trees.ragged import flat_links, node_name, node_starts


def links_from_parents(
    cu_nodes: NDArray[np.int64], parents: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First children and next siblings of a ragged batch.

    Args:
        cu_nodes: int64 `[bs + 1]`.
        parents: int64 `[num_nodes]`, local to the request, -1 for roots and padding.

    Returns:
        `retrieve_next_token` and `retrieve_next_sibling`, int64 `[num_nodes]`, local to the request.

    Raises:
        TreeError: a parent does not come before its child, or the lengths do not fit.
    """
    num_nodes = int(cu_nodes[-1])
    if parents.shape != (num_nodes,):
        raise TreeError(
            f"parents has shape {parents.shape}, but cu_nodes says {num_nodes} nodes; pass one a node"
        )
    starts = node_starts(cu_nodes)
    local = np.arange(num_nodes, dtype=np.int64) - starts
    bad = (parents < -1) | (parents >= local)
    if bad.any():
        node = int(bad.argmax())
        raise TreeError(
            f"{node_name(cu_nodes, node)} has parent {int(parents[node])}; a parent has a lower index than its "
            "child, local to the request, and roots and padding have -1"
        )

    # Children sorted by parent; a stable sort keeps siblings in the order of their indices.
    children = np.flatnonzero(parents >= 0)
    parent_of = flat_links(parents, starts)[children]
    order = np.argsort(parent_of, kind="stable")
    children, parent_of = children[order], parent_of[order]
    same_parent = parent_of[1:] == parent_of[:-1]
    is_first = np.concatenate(([True], ~same_parent))[: len(children)]

    next_token = np.full(num_nodes, -1, dtype=np.int64)
    next_token[parent_of[is_first]] = local[children[is_first]]
    next_sibling = np.full(num_nodes, -1, dtype=np.int64)
    next_sibling[children[:-1][same_parent]] = local[children[1:][same_parent]]
    return next_token, next_sibling


def parents_from_mask(mask: NDArray[np.bool_], num_nodes: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Each node's parent: the nearest node before it that it sees.

    Args:
        mask: bool `[bs, N, N]` (QLEN_ONLY); `mask[b, i, j]` says that node i sees node j. What a node says
            about itself or about later nodes is not looked at.
        num_nodes: int64 `[bs]`, how many nodes each request has; rows and columns from there on are padding,
            whatever they hold. None: all N.

    Returns:
        int64 `[bs, N]`, local to the request; -1 for roots and for padding.

    Raises:
        TreeError: a shape or dtype is not as stated.
    """
    if mask.ndim != 3 or mask.shape[1] != mask.shape[2] or mask.dtype != np.bool_:
        raise TreeError(f"an ancestor mask is bool [bs, N, N], not {mask.dtype} {list(mask.shape)}")
    bs, width, _ = mask.shape
    if num_nodes is not None and (num_nodes.shape != (bs,) or not np.issubdtype(num_nodes.dtype, np.integer)):
        raise TreeError(
            f"num_nodes is int64 [{bs}] for this mask, not {num_nodes.dtype} {list(num_nodes.shape)}"
        )
    if mask.size == 0:
        return np.full((bs, width), -1, dtype=np.int64)
    ancestors = mask & np.tri(width, k=-1, dtype=np.bool_)
    if num_nodes is not None:
        ancestors &= (np.arange(width) < num_nodes[:, None])[:, :, None]
    nearest = width - 1 - ancestors[:, :, ::-1].argmax(axis=-1)
    return np.where(ancestors.any(axis=-1), nearest, -1)


def derive_tree_links(
    mask: NDArray[np.bool_], num_nodes: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First children and next siblings of a dense batch, from who sees whom.

    The mask is trusted to describe trees; `convert.tree_from_mask` checks that it does.

    Args:
        mask: bool `[bs, N, N]`, as for `parents_from_mask`.
        num_nodes: int64 `[bs]`, as for `parents_from_mask`.

    Returns:
        `retrieve_next_token` and `retrieve_next_sibling`, int64 `[bs, N]`, -1 for none and for padding.

    Raises:
        TreeError: a shape or dtype is not as stated.
    """
    parents = parents_from_mask(mask, num_nodes)
    bs, width = parents.shape
    next_token, next_sibling = links_from_parents(
        np.arange(bs + 1, dtype=np.int64) * width, parents.reshape(-1)
    )
    return next_token.reshape(bs, width), next_sibling.reshape(bs, width)
