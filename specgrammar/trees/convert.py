"""A draft tree as attention masks, positions and row indices, and masks as trees.

Three layouts of an ancestor mask, by the names that engines use. A node sees its ancestors and itself:

    QLEN_ONLY    bool [bs, N, N]; row i, column j: node i sees node j
    FULL         per request bool [n, prefix_len + n]: the tokens before the root, which all see, then QLEN_ONLY
    bit-packed   QLEN_ONLY with the columns as bits: bit j % w of word j // w for words of w bits, lowest first

A padding node, and a place of a dense layout where a request has no node, sees itself alone (and the prefix):
an attention row without any column would turn into NaN, and a NaN in the values spreads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specgrammar.errors import TreeError
from specgrammar.trees.links import derive_tree_links
from specgrammar.trees.ragged import dense_slots, dense_width, doublings, node_name, node_starts
from specgrammar.trees.tree import HostTree


def qlen_mask(tree: HostTree, num_nodes: int | None = None) -> NDArray[np.bool_]:
    """The QLEN_ONLY mask, bool `[bs, N, N]`.

    Args:
        tree: a valid tree.
        num_nodes: N; None for the size of the largest tree (1 for an empty batch).

    Raises:
        TreeError: a tree has more than `num_nodes` nodes.
    """
    width = dense_width(tree.cu_nodes, num_nodes)
    slots, parents = dense_slots(tree.cu_nodes, width), tree.parents()
    local = np.arange(tree.num_nodes, dtype=np.int64) - node_starts(tree.cu_nodes)
    num_rows = tree.bs * width
    pointer = np.arange(num_rows, dtype=np.int64)
    pointer[slots] += np.where(parents >= 0, parents - local, 0)

    seen = np.zeros((num_rows, width), dtype=np.bool_)
    seen[np.arange(num_rows), np.arange(num_rows) % width] = True
    for ancestor in doublings(pointer):
        seen |= seen[ancestor]
    return seen.reshape(tree.bs, width, width)


def full_masks(tree: HostTree, prefix_lens: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """The FULL masks, one bool `[n, prefix_len + n]` per request.

    Engines that want one flat array (sglang's FULL_MASK) get it by `np.concatenate([m.ravel() for m in ...])`.

    Args:
        tree: a valid tree.
        prefix_lens: int64 `[bs]`, number of tokens before the root.

    Raises:
        TreeError: `prefix_lens` is not one non-negative number per request.
    """
    _check_prefix_lens(tree, prefix_lens)
    masks = []
    for seen, size, prefix_len in zip(qlen_mask(tree), np.diff(tree.cu_nodes), prefix_lens, strict=True):
        mask = np.ones((size, prefix_len + size), dtype=np.bool_)
        mask[:, prefix_len:] = seen[:size, :size]
        masks.append(mask)
    return masks


def pack_mask(mask: NDArray[np.bool_], word: DTypeLike = np.uint8) -> NDArray[np.generic]:
    """Bit-pack a QLEN_ONLY mask.

    Args:
        mask: bool `[bs, N, N]`.
        word: an integer dtype, e.g. `uint8`, `int32` or `int64`, of w bits.

    Returns:
        Words `[bs, N, ceil(N / w)]`; the bits behind N are 0.
    """
    word = np.dtype(word)
    bits = np.packbits(mask, axis=-1, bitorder="little")
    bits = np.pad(bits, ((0, 0), (0, 0), (0, -bits.shape[-1] % word.itemsize)))
    return bits.view(word.newbyteorder("<")).astype(word, copy=False)


def unpack_mask(words: NDArray[np.generic]) -> NDArray[np.bool_]:
    """The QLEN_ONLY mask of bit-packed words `[bs, N, ceil(N / w)]`: bool `[bs, N, N]`.

    Raises:
        TreeError: the number of words does not fit the number of nodes.
    """
    num_bits = 8 * words.dtype.itemsize
    if words.ndim != 3 or words.shape[2] != -(-words.shape[1] // num_bits):
        raise TreeError(
            f"a bit-packed mask is [bs, N, ceil(N / {num_bits})] for {words.dtype}, not {list(words.shape)}"
        )
    little = np.ascontiguousarray(words.astype(words.dtype.newbyteorder("<"), copy=False))
    return np.unpackbits(little.view(np.uint8), axis=-1, count=words.shape[1], bitorder="little").view(np.bool_)


def tree_from_mask(
    draft_tokens: NDArray[np.int64], mask: NDArray[np.bool_], num_nodes: NDArray[np.int64] | None = None
) -> HostTree:
    """The tree that a QLEN_ONLY mask describes.

    Args:
        draft_tokens: int64 `[bs, N]`, -1 for padding.
        mask: bool `[bs, N, N]`; a node's own column may be set or not.
        num_nodes: int64 `[bs]`, keep this many nodes of each request; None keeps all N.

    Raises:
        TreeError: the shapes do not fit, a node sees a later one, or it sees another set than its parent
            and its parent's ancestors, so that no tree has this mask.
    """
    if draft_tokens.shape != mask.shape[:2]:
        raise TreeError(f"draft_tokens has shape {draft_tokens.shape}, but the mask is for {mask.shape[:2]}")
    tree = HostTree.from_dense(draft_tokens, *derive_tree_links(mask, num_nodes), num_nodes)
    width = draft_tokens.shape[1]
    has_column = np.arange(width) < np.diff(tree.cu_nodes)[:, None, None]
    differs = (qlen_mask(tree, width) ^ (mask | np.eye(width, dtype=np.bool_))) & has_column
    bad = differs.any(axis=-1).reshape(-1)[dense_slots(tree.cu_nodes, width)]
    if bad.any():
        raise TreeError(
            f"{node_name(tree.cu_nodes, int(bad.argmax()))} sees other nodes than its parent, its parent's "
            "ancestors and itself; a mask row is the path from the root to the node"
        )
    return tree


def positions(tree: HostTree, prefix_lens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each node's position in its sequence, `prefix_len + depth`: int64 `[num_nodes]`; padding has its root's.

    Args:
        tree: a valid tree.
        prefix_lens: int64 `[bs]`, number of tokens before the root.

    Raises:
        TreeError: `prefix_lens` is not one non-negative number per request.
    """
    _check_prefix_lens(tree, prefix_lens)
    return np.repeat(prefix_lens, np.diff(tree.cu_nodes)) + tree.depths()


def retrieve_index(tree: HostTree, num_nodes: int | None = None) -> NDArray[np.int64]:
    """The flat index of each request's nodes, int64 `[bs, N]`: `cu_nodes[b] + i`, -1 where it has no node i.

    Padding nodes of the tree have an index like the others, as their logits rows exist. A tree that fills
    its dense layout has `b * N + i`.

    Args:
        tree: a valid tree.
        num_nodes: N; None for the size of the largest tree (1 for an empty batch).

    Raises:
        TreeError: a tree has more than `num_nodes` nodes.
    """
    width = dense_width(tree.cu_nodes, num_nodes)
    index = np.full(tree.bs * width, -1, dtype=np.int64)
    index[dense_slots(tree.cu_nodes, width)] = np.arange(tree.num_nodes, dtype=np.int64)
    return index.reshape(tree.bs, width)


def _check_prefix_lens(tree: HostTree, prefix_lens: NDArray[np.int64]) -> None:
    if prefix_lens.shape != (tree.bs,) or prefix_lens.dtype != np.int64 or (prefix_lens < 0).any():
        raise TreeError(
            f"prefix_lens is {prefix_lens.dtype} {list(prefix_lens.shape)}, lowest "
            f"{prefix_lens.min(initial=0)}; expected int64 [{tree.bs}], the number of tokens before each root"
        )
