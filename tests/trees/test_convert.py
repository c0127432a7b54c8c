from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.testing.strategies import trees
from specgrammar.trees.convert import (
    full_masks,
    pack_mask,
    positions,
    qlen_mask,
    retrieve_index,
    tree_from_mask,
    unpack_mask,
)
from specgrammar.trees.tree import HostTree
from tests.trees.reference import slow_parents, slow_path

WORDS = st.sampled_from(["uint8", "uint16", "uint32", "int32", "int64"])


def int64(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def example() -> HostTree:
    """Request 0: 5 → (6 → 8, 7), padding at node 3; request 1: its root alone."""
    return HostTree.from_parents(int64(0, 5, 6), int64(5, 6, 7, -1, 8, 9), int64(-1, 0, 0, -1, 1, -1))


def slow_qlen_mask(tree: HostTree, width: int) -> list[list[list[bool]]]:
    result = []
    for parents in slow_parents(tree):
        paths = [slow_path(parents, node) if node < len(parents) else [node] for node in range(width)]
        result.append([[column in path for column in range(width)] for path in paths])
    return result


def same_trees(a: HostTree, b: HostTree) -> bool:
    pairs = (
        (a.cu_nodes, b.cu_nodes),
        (a.draft_tokens, b.draft_tokens),
        (a.retrieve_next_token, b.retrieve_next_token),
        (a.retrieve_next_sibling, b.retrieve_next_sibling),
    )
    return all(np.array_equal(x, y) and x.dtype == y.dtype == np.int64 for x, y in pairs)


def test_a_node_sees_its_ancestors_and_itself() -> None:
    seen = qlen_mask(example())
    assert seen.dtype == np.bool_
    assert seen.astype(int).tolist() == [
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [1, 1, 0, 0, 1]],
        np.eye(5, dtype=int).tolist(),
    ]


def test_full_masks_begin_with_the_prefix() -> None:
    first, second = full_masks(example(), int64(2, 3))
    assert first.astype(int).tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 0, 0, 1],
    ]
    assert second.astype(int).tolist() == [[1, 1, 1, 1]]


def test_bits_are_lowest_first() -> None:
    assert pack_mask(qlen_mask(example())[:1]).tolist() == [[[1], [3], [5], [8], [19]]]
    chain = qlen_mask(HostTree.from_chains([range(70)]))
    assert pack_mask(chain, np.int64)[0, [0, 62, 63, 69]].tolist() == [
        [1, 0],
        [2**63 - 1, 0],
        [-1, 0],
        [-1, 63],
    ]


def test_positions_and_indices_of_the_example() -> None:
    assert positions(example(), int64(10, 0)).tolist() == [10, 11, 11, 10, 12, 0]
    assert retrieve_index(example()).tolist() == [[0, 1, 2, 3, 4], [5, -1, -1, -1, -1]]


@given(trees(max_nodes=20), st.integers(0, 3))
def test_masks_are_those_of_a_walk(tree: HostTree, extra: int) -> None:
    width = int(np.diff(tree.cu_nodes).max(initial=1)) + extra
    assert qlen_mask(tree, width).tolist() == slow_qlen_mask(tree, width)
    prefix_lens = np.arange(tree.bs) * 3
    for mask, expected, size, prefix_len in zip(
        full_masks(tree, prefix_lens), qlen_mask(tree, width), np.diff(tree.cu_nodes), prefix_lens, strict=True
    ):
        assert mask[:, :prefix_len].all()
        assert (mask[:, prefix_len:] == expected[:size, :size]).all()


@given(trees(max_nodes=20), st.booleans())
def test_mask_round_trip(tree: HostTree, with_diagonal: bool) -> None:
    seen = qlen_mask(tree) & (with_diagonal | ~np.eye(qlen_mask(tree).shape[1], dtype=np.bool_))
    tokens = tree.to_dense()[0]
    assert same_trees(tree_from_mask(tokens, seen, np.diff(tree.cu_nodes)), tree)
    assert same_trees(tree_from_mask(tokens, seen), HostTree.from_dense(*tree.to_dense()))


@given(trees(max_requests=2, max_nodes=70), WORDS)
def test_bit_packed_round_trip(tree: HostTree, word: str) -> None:
    seen = qlen_mask(tree)
    words = pack_mask(seen, word)
    assert words.dtype == np.dtype(word)
    assert (unpack_mask(words) == seen).all()
    num_bits = 8 * words.dtype.itemsize
    for request, row, column in np.ndindex(seen.shape):
        bit = int(words[request, row, column // num_bits]) >> (column % num_bits) & 1
        assert bit == seen[request, row, column]


@given(trees())
def test_positions_are_prefix_and_depth(tree: HostTree) -> None:
    prefix_lens = np.arange(tree.bs) * 100 + 7
    expected = [
        prefix + len(slow_path(parents, node)) - 1
        for prefix, parents in zip(prefix_lens.tolist(), slow_parents(tree), strict=True)
        for node in range(len(parents))
    ]
    result = positions(tree, prefix_lens)
    assert result.dtype == np.int64
    assert result.tolist() == expected


@given(trees(), st.integers(0, 3))
def test_retrieve_index_finds_each_node(tree: HostTree, extra: int) -> None:
    width = int(np.diff(tree.cu_nodes).max(initial=1)) + extra
    index = retrieve_index(tree, width)
    tokens = tree.to_dense(width)[0]
    assert (np.where(index >= 0, np.append(tree.draft_tokens, -1)[index], -1) == tokens).all()
    assert (index >= 0).sum(axis=1).tolist() == np.diff(tree.cu_nodes).tolist()
    dense = HostTree.from_dense(*tree.to_dense(width))
    assert retrieve_index(dense).reshape(-1).tolist() == list(range(tree.bs * width))


def test_a_mask_that_no_tree_has_is_refused() -> None:
    tokens = np.arange(8).reshape(2, 4)
    chain = np.tril(np.ones((2, 4, 4), dtype=np.bool_))
    for row, column in ((3, 1), (2, 0), (0, 2), (1, 3)):
        mask = chain.copy()
        mask[1, row, column] ^= True
        with pytest.raises(TreeError, match=f"request 1, node {row} sees other nodes"):
            tree_from_mask(tokens, mask)
    mask[1, 3, 1] = False  # with node 3 as padding, nobody looks at its row and its column
    assert tree_from_mask(tokens, mask, int64(4, 3)).num_nodes == 7


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TreeError, match=r"bool \[bs, N, N\], not bool \[1, 2, 3\]"):
        tree_from_mask(np.zeros((1, 2), dtype=np.int64), np.ones((1, 2, 3), dtype=np.bool_))
    with pytest.raises(TreeError, match=r"draft_tokens has shape \(1, 2\), but the mask is for \(1, 3\)"):
        tree_from_mask(np.zeros((1, 2), dtype=np.int64), np.ones((1, 3, 3), dtype=np.bool_))
    wrong: list[Any] = [int64(1), int64(1, -1), np.ones(2)]
    for prefix_lens in wrong:
        with pytest.raises(TreeError, match=r"prefix_lens is .* expected int64 \[2\]"):
            positions(example(), prefix_lens)
        with pytest.raises(TreeError, match="prefix_lens"):
            full_masks(example(), prefix_lens)
    with pytest.raises(TreeError, match="the dense layout has 4"):
        qlen_mask(example(), 4)
    with pytest.raises(TreeError, match="the dense layout has 4"):
        retrieve_index(example(), 4)
    with pytest.raises(TreeError, match=r"\[bs, N, ceil\(N / 8\)\] for uint8, not \[1, 9, 1\]"):
        unpack_mask(np.zeros((1, 9, 1), dtype=np.uint8))


def test_deep_chains_convert() -> None:
    tree = HostTree.from_chains([range(1500), [3]])
    seen = qlen_mask(tree)
    assert (seen[0] == np.tril(np.ones((1500, 1500), dtype=np.bool_))).all()
    assert same_trees(tree_from_mask(tree.to_dense()[0], seen, int64(1500, 1)), tree)
