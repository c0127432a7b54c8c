"""Staging: whatever side a part is on, the host gets the same tree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import TreeError
from specgrammar.grammar.staging import from_chain, from_device, from_host, staging_for
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.strategies import trees
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree

DEVICE = InlineDevice()
FIELDS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")


def same(a: HostTree, b: HostTree) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("cu_nodes", *FIELDS))


@given(trees(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_host_and_device_sources_may_be_mixed(tree: HostTree, on_host: tuple[bool, bool, bool]) -> None:
    parts = {
        name: getattr(tree, name) if host else torch.from_numpy(getattr(tree, name).copy())
        for name, host in zip(FIELDS, on_host, strict=True)
    }
    staged = from_device(DEVICE).stage(DraftTree(0, tree.cu_nodes, device=DeviceTree(**parts)))
    for part in parts.values():
        if isinstance(part, torch.Tensor):
            part.fill_(77)  # the draft's buffers are reused; the copy must not see it
    assert same(staged.resolve(), tree)
    assert staged.resolve() is staged.resolve()


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), max_size=4))
def test_a_chain_needs_its_ids_only(chains: list[list[int]]) -> None:
    tree = HostTree.from_chains(chains)
    draft = DraftTree(0, tree.cu_nodes, device=DeviceTree(torch.from_numpy(tree.draft_tokens.copy())))
    assert same(from_chain(DEVICE).stage(draft).resolve(), tree)
    assert same(staging_for("chain", DEVICE).stage(draft).resolve(), tree)


@given(trees())
def test_a_host_tree_is_not_copied(tree: HostTree) -> None:
    draft = DraftTree(0, tree.cu_nodes, tree)
    for strategy in (from_host(), staging_for("tree", DEVICE), staging_for("chain", DEVICE)):
        assert strategy.stage(draft).resolve() is tree


def test_what_is_missing_or_misshapen_is_named() -> None:
    tree = HostTree.from_chains([[1, 2]])
    good = {name: torch.from_numpy(getattr(tree, name)) for name in FIELDS}
    for name, wrong in itertools.product(FIELDS, (None, good[FIELDS[0]][:1], good[FIELDS[0]].int())):
        draft = DraftTree(0, tree.cu_nodes, device=DeviceTree(**(good | {name: wrong})))
        with pytest.raises(TreeError, match=name):
            from_device(DEVICE).stage(draft)
    with pytest.raises(TreeError, match="not on the host"):
        from_host().stage(DraftTree(0, tree.cu_nodes, device=DeviceTree(**good)))
