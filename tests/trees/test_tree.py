from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.testing.strategies import trees
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree
from tests.trees.reference import slow_links, slow_parents, slow_path


def int64(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def arrays_of(tree: HostTree) -> list[list[int]]:
    arrays = (tree.cu_nodes, tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
    assert all(array.dtype == np.int64 for array in arrays)
    return [array.tolist() for array in arrays]


def example() -> HostTree:
    """Request 0: 5 → (6 → 8, 7), padding at node 3; request 1: its root alone."""
    return HostTree.from_parents(int64(0, 5, 6), int64(5, 6, 7, -1, 8, 9), int64(-1, 0, 0, -1, 1, -1))


def test_links_count_from_the_root_of_each_request() -> None:
    assert arrays_of(example()) == [
        [0, 5, 6],
        [5, 6, 7, -1, 8, 9],
        [1, 4, -1, -1, -1, -1],
        [-1, 2, -1, -1, -1, -1],
    ]
    assert example().request_slice(1) == slice(5, 6)
    assert (example().bs, example().num_nodes) == (2, 6)


def test_dense_is_filled_with_minus_one() -> None:
    tokens, next_token, next_sibling = example().to_dense(6)
    assert tokens.tolist() == [[5, 6, 7, -1, 8, -1], [9, -1, -1, -1, -1, -1]]
    assert next_token.tolist() == [[1, 4, -1, -1, -1, -1], [-1] * 6]
    assert next_sibling.tolist() == [[-1, 2, -1, -1, -1, -1], [-1] * 6]


@given(trees())
def test_parents_depths_and_links_are_those_of_a_walk(tree: HostTree) -> None:
    expected = slow_parents(tree)
    assert tree.parents().tolist() == [parent for parents in expected for parent in parents]
    assert tree.depths().tolist() == [
        len(slow_path(parents, node)) - 1 for parents in expected for node in range(len(parents))
    ]
    links = [slow_links(parents) for parents in expected]
    assert tree.retrieve_next_token.tolist() == [link for next_token, _ in links for link in next_token]
    assert tree.retrieve_next_sibling.tolist() == [link for _, next_sibling in links for link in next_sibling]


@given(trees())
def test_parents_round_trip(tree: HostTree) -> None:
    again = HostTree.from_parents(tree.cu_nodes, tree.draft_tokens, tree.parents())
    assert arrays_of(again) == arrays_of(tree)


@given(trees(), st.integers(0, 3))
def test_dense_round_trip(tree: HostTree, extra: int) -> None:
    sizes = np.diff(tree.cu_nodes)
    width = int(sizes.max(initial=1)) + extra
    dense = tree.to_dense(width)
    assert all(array.shape == (tree.bs, width) for array in dense)
    assert arrays_of(HostTree.from_dense(*dense, num_nodes=sizes)) == arrays_of(tree)

    with_padding = HostTree.from_dense(*dense)
    validate_tree(with_padding)
    assert np.diff(with_padding.cu_nodes).tolist() == [width] * tree.bs
    assert all((a == b).all() for a, b in zip(with_padding.to_dense(), dense, strict=True))


def test_dense_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(TreeError, match="request 0 has 5 nodes, but the dense layout has 4"):
        example().to_dense(4)
    dense = example().to_dense()
    with pytest.raises(TreeError, match=r"num_nodes is \[5, 6\] for dense arrays \[2, 5\]"):
        HostTree.from_dense(*dense, num_nodes=int64(5, 6))
    with pytest.raises(TreeError, match=r"num_nodes is \[5, 0\]"):
        HostTree.from_dense(*dense, num_nodes=int64(5, 0))
    with pytest.raises(TreeError, match="expected \\[bs, N\\] for all three"):
        HostTree.from_dense(dense[0], dense[1], dense[2][:, :4])


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), max_size=4))
def test_chains_have_the_links_of_their_parents(chains: list[list[int]]) -> None:
    tree = HostTree.from_chains(chains)
    validate_tree(tree, vocab_size=100)
    parents = np.concatenate([int64(), *(np.arange(-1, len(tokens) - 1) for tokens in chains)])
    assert arrays_of(tree) == arrays_of(HostTree.from_parents(tree.cu_nodes, tree.draft_tokens, parents))
    assert tree.draft_tokens.tolist() == [token for tokens in chains for token in tokens]
    assert tree.depths().tolist() == [depth for tokens in chains for depth in range(len(tokens))]


def test_chain_links_may_be_written_to() -> None:
    first, second = chain_links(int64(0, 3)), chain_links(int64(0, 3))
    first[0][:] = 7
    assert second[0].tolist() == [1, 2, -1]
    assert second[1].tolist() == [-1, -1, -1]


def test_roots_are_trees_of_one_node() -> None:
    assert arrays_of(HostTree.roots([4, 2])) == [[0, 1, 2], [4, 2], [-1, -1], [-1, -1]]


def test_a_chain_without_a_root_is_refused() -> None:
    with pytest.raises(TreeError, match="request 1 has no tokens"):
        HostTree.from_chains([[1], []])


def test_an_empty_batch_is_a_tree() -> None:
    tree = HostTree.from_chains([])
    validate_tree(tree)
    assert arrays_of(tree) == [[0], [], [], []]
    assert tree.parents().tolist() == tree.depths().tolist() == []
    assert [array.shape for array in tree.to_dense()] == [(0, 1)] * 3


def test_a_parent_comes_before_its_child() -> None:
    cu_nodes, tokens = int64(0, 2, 5), int64(1, 2, 3, 4, 5)
    for parent in (1, 2, -2):
        with pytest.raises(TreeError, match=f"request 1, node 1 has parent {parent};"):
            HostTree.from_parents(cu_nodes, tokens, int64(-1, 0, -1, parent, 0))
    with pytest.raises(TreeError, match=r"parents has shape \(4,\), but cu_nodes says 5 nodes"):
        HostTree.from_parents(cu_nodes, tokens, int64(-1, 0, -1, 0))


def test_deep_and_wide_trees_need_no_recursion() -> None:
    num_nodes = 5000
    nodes = np.arange(num_nodes)
    cu_nodes, tokens = int64(0, num_nodes), np.zeros(num_nodes, dtype=np.int64)
    deep = HostTree.from_parents(cu_nodes, tokens, nodes - 1)
    assert (deep.parents() == nodes - 1).all()
    assert (deep.depths() == nodes).all()
    wide = HostTree.from_parents(cu_nodes, tokens, np.where(nodes > 0, 0, -1))
    assert (wide.parents() == np.where(nodes > 0, 0, -1)).all()
    assert (wide.depths() == (nodes > 0)).all()
    assert wide.retrieve_next_sibling.tolist() == [-1, *range(2, num_nodes), -1]
    validate_tree(deep)
    validate_tree(wide)
