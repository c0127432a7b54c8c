"""Staging strategies, each with one fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.grammar.staging import Copying, FromChain, FromDevice, Part
from specgrammar.protocols.staging import Device, StagedTree
from specgrammar.runtime.device import DoneEvent
from specgrammar.testing.checks.staging import FIELDS, STAGING_CHECKS
from specgrammar.trees.chain import chain_links
from specgrammar.trees.ragged import node_starts
from specgrammar.trees.tree import DraftTree, HostTree
from tests.conformance.cases import Broken


def copying(strategy: FromDevice, tree: DraftTree) -> Copying:
    """What the strategy without a fault makes."""
    staged = FromDevice.stage(strategy, tree)
    assert isinstance(staged, Copying)
    return staged


class CopiesAtResolve(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        outer = self

        class Lazy:
            staged: Copying | None = None

            def resolve(self) -> HostTree:
                self.staged = self.staged or copying(outer, tree)
                return self.staged.resolve()

        copying(self, tree)  # refuses what is to be refused
        return Lazy()


class ReadsAtOnce(FromDevice):
    """On a stream of its own, which nobody ordered behind the draft's."""

    def _on_host(self, source: Part) -> NDArray[np.int64]:
        return torch.as_tensor(source).clone().numpy()


class DoesNotWait(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        staged = copying(self, tree)
        staged._drafted, staged._event = DraftTree(0, tree.cu_nodes), DoneEvent()
        return staged


class AsksTooEarly(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        staged = copying(self, tree)
        staged._event = DoneEvent()
        return staged


class WaitsInStage(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        staged = copying(self, tree)
        self._device.record().wait()
        return staged


class UsesTheDevicesMemory(FromDevice):
    def _on_host(self, source: Part) -> NDArray[np.int64]:
        if isinstance(source, torch.Tensor) and self._device.shares_host_memory:
            return source.numpy()
        return super()._on_host(source)


class GlobalLinks(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        staged, starts = copying(self, tree), node_starts(tree.cu_nodes)

        class Shifted:
            tree: HostTree | None = None

            def resolve(self) -> HostTree:
                if self.tree is None:
                    found = staged.resolve()
                    links = (found.retrieve_next_token, found.retrieve_next_sibling)
                    moved = (np.where(link >= 0, link + starts, -1) for link in links)
                    self.tree = HostTree(found.cu_nodes, found.draft_tokens, *moved)
                return self.tree

        return Shifted()


class ThirtyTwoBits(FromDevice):
    def _on_host(self, source: Part) -> Any:
        return super()._on_host(source).astype(np.int32)

    def stage(self, tree: DraftTree) -> StagedTree:
        self._device.record().wait()
        return copying(self, tree)


class CutNodesLinked(FromChain):
    def stage(self, tree: DraftTree) -> StagedTree:
        links = chain_links(tree.cu_nodes)
        ids = self._part(tree, "draft_tokens")
        parts: dict[str, NDArray[np.int64]] = dict(zip(FIELDS, (ids, *links), strict=True))
        return Copying(tree, parts, self._device.record())


class OnePinnedBuffer(FromDevice):
    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._pinned = torch.empty(3, 64, dtype=torch.int64)

    def _part(self, tree: DraftTree, name: str) -> NDArray[np.int64]:
        self._next = self._pinned[FIELDS.index(name)]
        return super()._part(tree, name)

    def _on_host(self, source: Part) -> NDArray[np.int64]:
        if isinstance(source, np.ndarray):
            return source
        self._device.copy(self._next[: len(source)], source)
        return self._next[: len(source)].numpy()


class ResolvesAgain(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        class Again(Copying):
            def resolve(self) -> HostTree:
                self._tree = None
                return super().resolve()

        staged = copying(self, tree)
        return Again(tree, staged._parts, staged._event)


class CopiesTheHosts(FromDevice):
    def _part(self, tree: DraftTree, name: str) -> NDArray[np.int64]:
        return super()._part(tree, name).copy() if tree.host is not None else super()._part(tree, name)


class SwallowsErrors(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        staged = copying(self, tree)
        staged._drafted = DraftTree(0, tree.cu_nodes)
        return staged


class TellsOnce(FromDevice):
    def stage(self, tree: DraftTree) -> StagedTree:
        class Once(Copying):
            def resolve(self) -> HostTree:
                try:
                    return super().resolve()
                finally:
                    self._drafted = DraftTree(0, tree.cu_nodes)

        staged = copying(self, tree)
        return Once(tree, staged._parts, staged._event)


class FillsWhatIsMissing(FromDevice):
    def _part(self, tree: DraftTree, name: str) -> NDArray[np.int64]:
        if tree.host is None and getattr(tree.device, name) is None:
            return np.full(tree.num_nodes, -1, np.int64)
        return super()._part(tree, name)


class TakesAnyDtype(FromDevice):
    def _part(self, tree: DraftTree, name: str) -> NDArray[np.int64]:
        source = None if tree.host is not None else getattr(tree.device, name)
        if isinstance(source, torch.Tensor) and source.dtype == torch.int32:
            return self._on_host(source)
        return super()._part(tree, name)


class RefusesAll:
    def __init__(self, device: Device) -> None:
        """For no device."""

    def stage(self, tree: DraftTree) -> StagedTree:
        raise TreeError(f"no tree of step {tree.step} is taken")


GETS = "the_host_gets_the_tree"
LATER = "later_work_is_not_seen"
WAITS = "resolve_waits_for_the_copy"
OVERWRITTEN = r"draft_tokens where later work writes 7 .* is \[7, 7, 7\]; expected \[5, 3, 4\]"

BROKEN_STAGINGS = [
    Broken(fault, STAGING_CHECKS, make, f"check_{check}", finds, {"topology": topology})
    for fault, make, topology, check, finds in (
        ("the copy is issued at `resolve`", CopiesAtResolve, "tree", LATER, OVERWRITTEN),
        ("a CPU device's memory is used in place", UsesTheDevicesMemory, "tree", LATER, OVERWRITTEN),
        (
            "the copy is not ordered behind the draft",
            ReadsAtOnce,
            "tree",
            WAITS,
            r"draft_tokens .* is \[7, 7, 7\]; expected \[5, 3, 4\]",
        ),
        ("`resolve` does not wait", DoesNotWait, "tree", WAITS, r"draft_tokens .* is \[3074457345618258602"),
        ("`resolve` asks before it waited", AsksTooEarly, "tree", WAITS, "'draft' was read before it was done"),
        ("`stage` waits", WaitsInStage, "tree", "stage_does_not_wait", "on device waited for the device"),
        ("links count from the batch's first node", GlobalLinks, "tree", GETS, "retrieve_next_.* expected"),
        ("ids of 32 bits", ThirtyTwoBits, "tree", GETS, "draft_tokens .* is int32; expected int64"),
        ("cut nodes of a chain are linked", CutNodesLinked, "chain", GETS, "retrieve_next_token .* expected"),
        ("a tree is taken for a chain", FromChain, "tree", GETS, "retrieve_next_.* expected"),
        (
            "one pinned buffer for all trees",
            OnePinnedBuffer,
            "tree",
            "trees_in_flight",
            r"of tree \d is .*; expected",
        ),
        (
            "`resolve` makes a new tree each time",
            ResolvesAgain,
            "tree",
            "resolve_is_idempotent",
            "returned another tree than the first",
        ),
        (
            "what the host has is copied",
            CopiesTheHosts,
            "tree",
            "the_hosts_parts_are_not_copied",
            "draft_tokens, which the host had, was copied",
        ),
        (
            "a failed draft gives whatever was there",
            SwallowsErrors,
            "tree",
            "a_failed_draft_is_told",
            "the first `resolve` .* raised nothing",
        ),
        (
            "a failed draft is told to the first who asks",
            TellsOnce,
            "tree",
            "a_failed_draft_is_told",
            "a second `resolve` .* raised nothing",
        ),
        (
            "missing links are taken for none",
            FillsWhatIsMissing,
            "tree",
            "what_is_missing_is_refused",
            "a tree without draft_tokens raised nothing",
        ),
        (
            "ids of another dtype are taken",
            TakesAnyDtype,
            "tree",
            "what_is_missing_is_refused",
            "draft_tokens is int32 raised nothing",
        ),
        ("every tree is refused", RefusesAll, "tree", GETS, "TreeError for every tree"),
    )
]
