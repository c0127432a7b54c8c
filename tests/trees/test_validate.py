from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.testing.strategies import trees
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree
from tests.trees.reference import slow_path


def int64(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def example() -> HostTree:
    """Request 0: 1 → 2. Request 1: 5 → (6 → 8, 7), padding at node 3."""
    return HostTree.from_parents(int64(0, 2, 7), int64(1, 2, 5, 6, 7, -1, 8), int64(-1, 0, -1, 0, 0, -1, 1))


def changed(**entries: dict[int, int]) -> HostTree:
    """The example with entries of request 1 overwritten."""
    arrays = {name: getattr(example(), name).copy() for name in entries}
    for name, values in entries.items():
        for node, value in values.items():
            arrays[name][2 + node] = value
    return replace(example(), **arrays)


MALFORMED = {
    "cycle": (
        changed(retrieve_next_token={4: 1}),
        "node 4",
        "retrieve_next_token 1, which does not lie behind it",
    ),
    "self": (changed(retrieve_next_token={2: 2}), "node 2", "a cycle"),
    "cycle of siblings": (changed(retrieve_next_sibling={2: 1}), "node 2", "siblings rise"),
    "forward parent": (
        changed(retrieve_next_token={0: 2, 2: 1}, retrieve_next_sibling={1: -1}),
        "node 2",
        "a parent behind its child",
    ),
    "back to the root": (changed(retrieve_next_token={4: 0}), "node 4", "a cycle"),
    "two parents": (changed(retrieve_next_token={2: 4}), "node 4", "linked to 2 times: it has two parents"),
    "child and sibling": (changed(retrieve_next_token={1: 2}), "node 2", "twice among siblings"),
    "child out of range": (changed(retrieve_next_token={4: 5}), "node 4", "5, out of range for 5 nodes"),
    "sibling out of range": (changed(retrieve_next_sibling={2: 99}), "node 2", "99, out of range for 5 nodes"),
    "negative link": (changed(retrieve_next_token={4: -2}), "node 4", "-2, out of range"),
    "root with sibling": (changed(retrieve_next_sibling={0: 1}), "node 0", "a root with sibling 1"),
    "unreachable": (changed(draft_tokens={3: 9}), "node 3", "has token 9, but nothing links to it"),
    "unreachable subtree": (changed(retrieve_next_sibling={1: -1}), "node 2", "nothing links to it"),
    "linked padding": (changed(draft_tokens={4: -1}), "node 1", "retrieve_next_token 4, which is padding"),
    "sibling padding": (changed(draft_tokens={2: -1}), "node 1", "retrieve_next_sibling 2, which is padding"),
    "padding with a child": (
        changed(retrieve_next_token={3: 4}),
        "node 3",
        "is padding (token -1) with links 4",
    ),
    "padding with a sibling": (changed(retrieve_next_sibling={3: 4}), "node 3", "with links -1 and 4"),
    "root padding": (changed(draft_tokens={0: -1}), "node 0", "is a root and padding"),
    "negative token": (changed(draft_tokens={2: -2}), "node 2", "has token -2"),
    "token outside the vocabulary": (changed(draft_tokens={2: 50}), "node 2", "50, but the vocabulary has 50"),
}


@pytest.mark.parametrize(("tree", "node", "problem"), MALFORMED.values(), ids=MALFORMED.keys())
def test_names_request_and_node(tree: HostTree, node: str, problem: str) -> None:
    validate_tree(example(), vocab_size=50)
    with pytest.raises(TreeError, match=re.escape(f"request 1, {node} ") + ".*" + re.escape(problem)):
        validate_tree(tree, vocab_size=50)
    with pytest.raises(TreeError, match=re.escape(f"request 1 ('bob'), {node} ")):
        validate_tree(tree, ["alice", "bob"], vocab_size=50)


LIST: Any = [-1] * 7
STRUCTURE = {
    "not int64": (replace(example(), draft_tokens=np.zeros(7, dtype=np.int32)), r"draft_tokens is int32 \[7\]"),
    "not flat": (
        replace(example(), retrieve_next_token=np.full((7, 1), -1)),
        r"retrieve_next_token is int64 \[7, 1\]; expected a one-dimensional int64",
    ),
    "not an array": (replace(example(), retrieve_next_sibling=LIST), "retrieve_next_sibling is list"),
    "too short": (
        replace(example(), retrieve_next_sibling=np.full(6, -1)),
        "retrieve_next_sibling has 6 entries, but cu_nodes ends with 7",
    ),
    "no start": (replace(example(), cu_nodes=int64(1, 2, 7)), "cu_nodes .* starts with 0"),
    "no cu_nodes": (replace(example(), cu_nodes=int64()), "cu_nodes .* starts with 0"),
    "zero nodes": (replace(example(), cu_nodes=int64(0, 2, 2, 7)), "request 1 has 0 nodes by cu_nodes"),
    "falling": (replace(example(), cu_nodes=int64(0, 8, 7)), "request 1 has -1 nodes by cu_nodes"),
}


@pytest.mark.parametrize(("tree", "problem"), STRUCTURE.values(), ids=STRUCTURE.keys())
def test_names_the_array_that_does_not_fit(tree: HostTree, problem: str) -> None:
    with pytest.raises(TreeError, match=problem):
        validate_tree(tree)


def test_request_ids_are_one_per_request() -> None:
    with pytest.raises(TreeError, match="1 request ids for a tree of 2 requests"):
        validate_tree(example(), ["alice"])
    with pytest.raises(TreeError, match=r"request 1 \('b'\) has 0 nodes"):
        validate_tree(replace(example(), cu_nodes=int64(0, 2, 2, 7)), ["a", "b", "c"])


@given(trees())
def test_accepts_every_tree(tree: HostTree) -> None:
    validate_tree(tree, [f"r{b}" for b in range(tree.bs)], vocab_size=100)


def is_tree(tree: HostTree) -> bool:
    """By the definition: every real node is reached once from the root, parents and siblings rise."""
    for request in range(tree.bs):
        nodes = tree.request_slice(request)
        tokens, child, sibling = (
            array[nodes].tolist()
            for array in (tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
        )
        parents, todo, reached = [-1] * len(tokens), [0], [0]
        if tokens[0] < 0 or sibling[0] != -1:
            return False
        while todo:
            node = todo.pop()
            previous, at = node, child[node]
            while at != -1:
                if not previous < at < len(tokens) or at in reached or tokens[at] < 0:
                    return False
                parents[at] = node
                reached.append(at)
                todo.append(at)
                previous, at = at, sibling[at]
        for node, token in enumerate(tokens):
            if node in reached:
                assert slow_path(parents, node)[-1] == 0
            elif (token, child[node], sibling[node]) != (-1, -1, -1):
                return False
    return True


@given(trees(max_requests=3, max_nodes=5), st.data())
def test_refuses_exactly_what_is_not_a_tree(tree: HostTree, data: st.DataObject) -> None:
    for name in ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling"):
        for node in data.draw(st.lists(st.integers(0, max(tree.num_nodes - 1, 0)), max_size=2), label=name):
            if tree.num_nodes:
                getattr(tree, name)[node] = data.draw(st.integers(-2, 5))
    if is_tree(tree):
        validate_tree(tree)
    else:
        with pytest.raises(TreeError, match=r"request \d, node \d"):
            validate_tree(tree)


def test_a_tree_is_checked_once_and_ids_each_time_that_they_are_asked_about() -> None:
    tree = HostTree.from_chains([[1, 9]])
    validate_tree(tree)
    assert tree.is_valid
    tree.retrieve_next_token[1] = 0  # not to be done: it shows that nobody looks again
    validate_tree(tree)
    again = HostTree.from_chains([[1, 9]])
    validate_tree(again)
    with pytest.raises(TreeError, match="token 9"):
        validate_tree(again, vocab_size=9)
    assert not HostTree.from_chains([[1]]).is_valid
