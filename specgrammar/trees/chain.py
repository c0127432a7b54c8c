"""The degenerate tree: every node but the last has one child, so the links follow from the shape alone.

Nothing has to be copied from a device, or derived, to know them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specgrammar.trees.ragged import node_starts


def chain_links(
    cu_nodes: NDArray[np.int64], exists: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The links of a batch of chains.

    Args:
        cu_nodes: int64 `[bs + 1]`; every request has at least its root.
        exists: bool `[num_nodes]`, False for nodes that were cut: nothing links to them or from them. None
            where there are none.

    Returns:
        `retrieve_next_token` and `retrieve_next_sibling`, int64 `[num_nodes]`, local to the request. New
        arrays at each call: they may be written to.
    """
    next_token = np.arange(1, cu_nodes[-1] + 1, dtype=np.int64) - node_starts(cu_nodes)
    next_token[cu_nodes[1:] - 1] = -1
    if exists is not None and not exists.all():
        next_token[~exists] = -1
        next_token[:-1][~exists[1:]] = -1
    return next_token, np.full_like(next_token, -1)
