"""Staging strategies: from where the host gets a draft tree's ids and links.

    from_host    the host made the tree: wrap it
    from_chain   every request's tree is a chain: the links follow from the shape, only ids are copied
    from_device  a device made it: one asynchronous copy into pinned memory, one event

Each takes a `DraftTree` whose parts may be on either side; what the host has is never copied. The names are
those of sglang's `GrammarTree`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.protocols.staging import Device, Event, StagedTree, StagingStrategy
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import DraftTree, HostTree

Part = torch.Tensor | NDArray[np.int64]

_FIELDS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")


@dataclass(frozen=True)
class Resolved:
    """A tree that the host has already."""

    tree: HostTree

    def resolve(self) -> HostTree:
        """The tree."""
        return self.tree


class Copying:
    """A tree whose copy is under way."""

    def __init__(self, tree: DraftTree, parts: dict[str, NDArray[np.int64]], event: Event) -> None:
        """Hold the destinations until the event says that they may be read."""
        self._drafted, self._parts, self._event = tree, parts, event
        self._tree: HostTree | None = None

    def resolve(self) -> HostTree:
        """Wait for the copy; the first call waits, later ones return the same tree.

        Raises what the work that made the tree raised.
        """
        if self._tree is None:
            self._event.wait()
            if self._drafted.made is not None:
                self._drafted.made.value()
            self._tree = self._on_host(self._drafted.cu_nodes, self._parts)
        return self._tree

    def _on_host(self, cu_nodes: NDArray[np.int64], parts: dict[str, NDArray[np.int64]]) -> HostTree:
        return HostTree(cu_nodes, *(parts[name] for name in _FIELDS))


class CopyingChains(Copying):
    """Chains whose ids are on their way; their links are known but for those to nodes that were cut."""

    def _on_host(self, cu_nodes: NDArray[np.int64], parts: dict[str, NDArray[np.int64]]) -> HostTree:
        ids = parts["draft_tokens"]
        return HostTree(cu_nodes, ids, *chain_links(cu_nodes, ids >= 0))


class FromHost:
    """The host made the tree (ngram, forced, prompt lookup)."""

    def stage(self, tree: DraftTree) -> StagedTree:
        """Wrap the host arrays; raises TreeError where there are none."""
        if tree.host is None:
            raise TreeError("from_host: the tree is not on the host; stage it with from_device or from_chain")
        return Resolved(tree.host)


class FromDevice:
    """A device made the tree, or parts of it."""

    def __init__(self, device: Device) -> None:
        """Copies go to this device's current stream."""
        self._device = device

    def stage(self, tree: DraftTree) -> StagedTree:
        """Enqueue one copy per part that only the device has, and one event behind them.

        Raises TreeError where neither side has a part, or where a part has the wrong shape or dtype.
        """
        parts = {name: self._part(tree, name) for name in _FIELDS}
        return Copying(tree, parts, self._device.record())

    def _part(self, tree: DraftTree, name: str) -> NDArray[np.int64]:
        if tree.host is not None:
            part: NDArray[np.int64] = getattr(tree.host, name)
            return part
        return self._on_host(_checked(getattr(tree.device, name), name, tree.num_nodes))

    def _on_host(self, source: Part) -> NDArray[np.int64]:
        if isinstance(source, np.ndarray):
            return source
        pinned = torch.empty(source.shape, dtype=torch.int64, pin_memory=self._device.can_pin)
        self._device.copy(pinned, source)
        return pinned.numpy()


class FromChain(FromDevice):
    """Every request's tree is a chain, so that its links need no copy."""

    def stage(self, tree: DraftTree) -> StagedTree:
        """Copy the ids if only the device has them; the links follow from `cu_nodes` and from what was cut."""
        ids = self._part(tree, "draft_tokens")
        return CopyingChains(tree, {"draft_tokens": ids}, self._device.record())


def _checked(source: Part | None, name: str, num_nodes: int) -> Part:
    if source is None:
        raise TreeError(f"staging: {name} is neither on the host nor on the device")
    if source.dtype not in (torch.int64, np.dtype(np.int64)) or source.shape != (num_nodes,):
        raise TreeError(
            f"staging: {name} is {source.dtype} {tuple(source.shape)}; expected int64 ({num_nodes},)"
        )
    return source


def from_host() -> FromHost:
    """For trees that the host made."""
    return FromHost()


def from_device(device: Device) -> FromDevice:
    """For trees that a device made; host and device sources may be mixed."""
    return FromDevice(device)


def from_chain(device: Device) -> FromChain:
    """For chains: one copy of the ids, none of the links."""
    return FromChain(device)


class FromAnywhere:
    """What the tree has decides: host arrays are wrapped, everything else is copied."""

    def __init__(self, elsewhere: StagingStrategy) -> None:
        """Use `elsewhere` for trees that the host does not have."""
        self._host, self._elsewhere = FromHost(), elsewhere

    def stage(self, tree: DraftTree) -> StagedTree:
        """Stage with the strategy that fits."""
        return (self._host if tree.host is not None else self._elsewhere).stage(tree)


def staging_for(topology: Literal["chain", "tree"], device: Device) -> StagingStrategy:
    """The strategy for an algorithm's trees."""
    return FromAnywhere(from_chain(device) if topology == "chain" else from_device(device))
