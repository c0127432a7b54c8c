"""Index arithmetic of ragged batches and of links, without a Python loop per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import TreeError


def node_starts(cu_nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each node the flat index of its request's root: int64 `[num_nodes]`."""
    return np.repeat(cu_nodes[:-1], np.diff(cu_nodes))


def flat_links(links: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Links local to a request as flat indices, -1 kept."""
    return np.where(links >= 0, links + starts, -1)


def doublings(pointer: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Follow a pointer by 1, 2, 4, … steps until nothing moves any more; the last one has every end.

    A node that points to itself is an end. The number of rounds is the logarithm of the longest way, and
    never more than that of the number of nodes, so a broken pointer with a cycle does not hang.
    """
    for _ in range(len(pointer).bit_length() + 1):
        yield pointer
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            return
        pointer = further


def dense_width(cu_nodes: NDArray[np.int64], num_nodes: int | None) -> int:
    """The number of columns N of a dense layout: `num_nodes`, or the largest tree's size (at least 1).

    Raises:
        TreeError: a tree has more nodes than `num_nodes`.
    """
    sizes = np.diff(cu_nodes)
    largest = int(sizes.max(initial=1))
    if num_nodes is None:
        return largest
    if largest > num_nodes:
        raise TreeError(
            f"request {int(sizes.argmax())} has {largest} nodes, but the dense layout has {num_nodes}; "
            "cut the tree or widen the layout"
        )
    return num_nodes


def dense_slots(cu_nodes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """For each node its place in a flattened `[bs, width]` array: int64 `[num_nodes]`."""
    first_slot = np.arange(len(cu_nodes) - 1, dtype=np.int64) * width
    return np.arange(cu_nodes[-1], dtype=np.int64) + np.repeat(first_slot - cu_nodes[:-1], np.diff(cu_nodes))


def request_name(request: int, request_ids: Sequence[str] | None = None) -> str:
    """How messages name a request: its index, and its id where that is known."""
    return f"request {request}" if request_ids is None else f"request {request} ({request_ids[request]!r})"


def node_name(cu_nodes: NDArray[np.int64], node: int, request_ids: Sequence[str] | None = None) -> str:
    """How messages name the node with flat index `node`: its request, and its number within it."""
    request = int(np.searchsorted(cu_nodes, node, side="right")) - 1
    return f"{request_name(request, request_ids)}, node {node - int(cu_nodes[request])}"
