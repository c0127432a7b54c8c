"""Staging says what is wrong with a tree (what it does with a good one, the kit checks)."""

from __future__ import annotations

import itertools

import pytest
import torch

from specgrammar.errors import TreeError
from specgrammar.grammar.staging import from_device, from_host
from specgrammar.runtime.device import InlineDevice
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree

FIELDS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")


def test_what_is_missing_or_misshapen_is_named() -> None:
    tree = HostTree.from_chains([[1, 2]])
    good = {name: torch.from_numpy(getattr(tree, name)) for name in FIELDS}
    for name, wrong in itertools.product(FIELDS, (None, good[FIELDS[0]][:1], good[FIELDS[0]].int())):
        draft = DraftTree(0, tree.cu_nodes, device=DeviceTree(**(good | {name: wrong})))
        with pytest.raises(TreeError, match=name):
            from_device(InlineDevice()).stage(draft)
    with pytest.raises(TreeError, match="not on the host"):
        from_host().stage(DraftTree(0, tree.cu_nodes, device=DeviceTree(**good)))
