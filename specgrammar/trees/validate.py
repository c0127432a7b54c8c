"""Refuses what is not a forest, with the request and the node where it goes wrong.

Forward links alone make cycles impossible, and one incoming link for every node but the roots makes the
forest connected, so a fixed number of vector operations decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.trees.ragged import flat_links, node_name, node_starts, request_name

if TYPE_CHECKING:
    from specgrammar.trees.tree import HostTree

_NODE_ARRAYS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")


def validate_tree(
    tree: HostTree, request_ids: Sequence[str] | None = None, vocab_size: int | None = None
) -> None:
    """Check that a host tree is what `tree.py` says; an empty batch is. A tree is checked once.

    Args:
        tree: the tree; it is not changed.
        request_ids: one per request, for the messages.
        vocab_size: also refuse ids at or above it.

    Raises:
        TreeError: the first thing that is wrong; names array, request and node, and what is expected.
    """
    if tree.is_valid and vocab_size is None:
        return
    _check_arrays(tree)
    _check_requests(tree.cu_nodes, request_ids)
    _check_nodes(tree, request_ids, vocab_size)
    object.__setattr__(tree, "is_valid", True)


def _check_arrays(tree: HostTree) -> None:
    for name in ("cu_nodes", *_NODE_ARRAYS):
        array = getattr(tree, name)
        if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1:
            found = (
                f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            )
            raise TreeError(f"{name} is {found}; expected a one-dimensional int64 NumPy array")
    if len(tree.cu_nodes) == 0 or tree.cu_nodes[0] != 0:
        raise TreeError(f"cu_nodes is {tree.cu_nodes[:1].tolist()}…; it starts with 0, also for an empty batch")
    num_nodes = int(tree.cu_nodes[-1])
    for name in _NODE_ARRAYS:
        if len(getattr(tree, name)) != num_nodes:
            raise TreeError(
                f"{name} has {len(getattr(tree, name))} entries, but cu_nodes ends with {num_nodes}; "
                "every array has one entry a node"
            )


def _check_requests(cu_nodes: NDArray[np.int64], request_ids: Sequence[str] | None) -> None:
    bs = len(cu_nodes) - 1
    if request_ids is not None and len(request_ids) != bs:
        raise TreeError(f"{len(request_ids)} request ids for a tree of {bs} requests; pass one per request")
    empty = np.diff(cu_nodes) < 1
    if empty.any():
        request = int(empty.argmax())
        size = int(cu_nodes[request + 1] - cu_nodes[request])
        raise TreeError(
            f"{request_name(request, request_ids)} has {size} nodes by cu_nodes; "
            "cu_nodes rises at each request by its number of nodes, and every request has at least its root"
        )


def _check_nodes(tree: HostTree, request_ids: Sequence[str] | None, vocab_size: int | None) -> None:
    cu_nodes, tokens = tree.cu_nodes, tree.draft_tokens
    child, sibling = tree.retrieve_next_token, tree.retrieve_next_sibling
    starts, sizes = node_starts(cu_nodes), np.repeat(np.diff(cu_nodes), np.diff(cu_nodes))
    local = np.arange(len(tokens), dtype=np.int64) - starts
    is_root, is_padding = local == 0, tokens == -1

    def refuse(bad: NDArray[np.bool_], problem: str, **of_node: NDArray[np.int64]) -> None:
        if bad.any():
            node = int(bad.argmax())
            found = problem.format(**{name: array[node] for name, array in of_node.items()})
            raise TreeError(f"{node_name(cu_nodes, node, request_ids)} {found}")

    refuse(tokens < -1, "has token {token}; a token is an id, or -1 for padding", token=tokens)
    if vocab_size is not None:
        problem = f"has token {{token}}, but the vocabulary has {vocab_size}; drop the draft from here on"
        refuse(tokens >= vocab_size, problem, token=tokens)
    refuse(is_root & is_padding, "is a root and padding; a root is the last committed token")
    problem = "is a root with sibling {sibling}; a root's retrieve_next_sibling is -1"
    refuse(is_root & (sibling != -1), problem, sibling=sibling)
    problem = "is padding (token -1) with links {child} and {sibling}; padding has -1 for both"
    refuse(is_padding & ((child != -1) | (sibling != -1)), problem, child=child, sibling=sibling)

    for name, link in (("retrieve_next_token", child), ("retrieve_next_sibling", sibling)):
        refuse(
            (link < -1) | (link >= sizes),
            f"has {name} {{link}}, out of range for {{size}} nodes; links count from the root, -1 is none",
            link=link,
            size=sizes,
        )
        refuse(
            (link >= 0) & (link <= local),
            f"has {name} {{link}}, which does not lie behind it: a cycle, or a parent behind its child; "
            "number nodes so that children come behind their parent, and siblings rise",
            link=link,
        )
        refuse(
            (link >= 0) & is_padding[flat_links(link, starts)],
            f"has {name} {{link}}, which is padding (token -1); set the link to -1 or give that node a token",
            link=link,
        )

    targets = np.concatenate((flat_links(child, starts), flat_links(sibling, starts)))
    num_links_in = np.bincount(targets[targets >= 0], minlength=len(tokens))
    refuse(
        num_links_in > 1,
        "is linked to {times} times: it has two parents, or is twice among siblings; link each node once",
        times=num_links_in,
    )
    refuse(
        ~is_padding & ~is_root & (num_links_in == 0),
        "has token {token}, but nothing links to it; link it to its parent, or make it padding (token -1)",
        token=tokens,
    )
