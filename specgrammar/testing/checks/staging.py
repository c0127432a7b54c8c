"""Checks of `StagingStrategy`: the host gets the tree that the device has, when it is there and not before.

The device is a `DelayedDevice` mostly: nothing runs before a check says so, and a copy that is read too early
shows poison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.protocols.staging import Device, StagedTree, StagingStrategy
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.checks.base import Checks, Draw, Story, expect, expect_raise, explore, same
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.strategies import trees
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree

MakeStaging = Callable[[Device], StagingStrategy]
"""What staging checks take: makes one for a device."""

Trees = Literal["chain", "tree"]
"""Which trees a strategy is for, as `staging_for` is told: a chain's links are known, no device has them."""

Side = Literal["host", "device", "both"]
"""Where a tree's parts are; `both` is some of them here and some of them there."""

STAGING_CHECKS = Checks("staging")

FIELDS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")
SIDES: tuple[Side, ...] = ("device", "both", "host")
_OVERWRITTEN = 7


@dataclass
class Drafts:
    """A drafter on a device: every tree is written into the same memory by launched work, as graphs do."""

    device: Device
    topology: Trees
    side: Side

    def __post_init__(self) -> None:
        self._buffers = {name: torch.full((64,), _OVERWRITTEN) for name in FIELDS}

    def draft(self, tree: HostTree, error: Exception | None = None) -> DraftTree:
        """Launch the work that writes the parts that the device has; it raises `error` if there is one."""
        if self.side == "host":
            return DraftTree.from_host(0, tree)
        on_device = list(FIELDS if self.topology == "tree" else FIELDS[:1])
        on_device = on_device[:2] if self.side == "both" else on_device
        parts: dict[str, torch.Tensor | NDArray[np.int64]] = {
            name: self._buffers[name][: tree.num_nodes] if name in on_device else getattr(tree, name)
            for name in FIELDS
            if name in on_device or self.topology == "tree" or self.side == "both"
        }

        def work() -> None:
            if error is not None:
                raise error
            for name in on_device:
                self._buffers[name][: tree.num_nodes] = torch.from_numpy(getattr(tree, name).copy())

        made = self.device.launch(work, "draft")
        return DraftTree(0, tree.cu_nodes, device=DeviceTree(**parts), made=made)

    def go_on(self) -> None:
        """Launch what comes behind: it works in the memory of the device's tree."""

        def work() -> None:
            for buffer in self._buffers.values():
                buffer.fill_(_OVERWRITTEN)

        self.device.launch(work, "forward")


@st.composite
def chains(draw: st.DrawFn) -> HostTree:
    """Batches of chains; nodes at the end of some were cut by the device, and are padding."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=3))
    cu_nodes, tokens = [0], list[int]()
    for size, num_cut in sizes:
        num_cut = min(num_cut, size - 1)
        tokens += [draw(st.integers(0, 99)) for _ in range(size - num_cut)] + [-1] * num_cut
        cu_nodes.append(len(tokens))
    bounds, ids = np.array(cu_nodes, np.int64), np.array(tokens, np.int64)
    return HostTree(bounds, ids, *chain_links(bounds, ids >= 0))


def some_tree(topology: Trees) -> st.SearchStrategy[HostTree]:
    """What a strategy for these trees has to take."""
    return chains() if topology == "chain" else trees(max_requests=2, max_nodes=6)


def smallest_tree() -> HostTree:
    """A chain of two nodes behind one of one node, so that local links are no global ones."""
    return HostTree.from_chains([[5], [3, 4]])


def sides_taken(make: MakeStaging, topology: Trees) -> tuple[Side, ...]:
    """Where a strategy takes trees from: others it refuses with TreeError. Raises where it takes none."""
    taken = []
    for side in SIDES:
        device = InlineDevice()
        try:
            make(device).stage(Drafts(device, topology, side).draft(smallest_tree()))
            taken.append(side)
        except TreeError:
            pass
    expect(taken, "stage raises TreeError for every tree, on the host, on a device or on both")
    return tuple(taken)


def told(tree: HostTree) -> str:
    """A tree for people."""
    bounds = tree.cu_nodes.tolist()
    parts = (tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
    return "; ".join(
        f"request {b}: tokens {ids}, first children {children}, siblings {siblings}"
        for b in range(tree.bs)
        for ids, children, siblings in [[part[bounds[b] : bounds[b + 1]].tolist() for part in parts]]
    )


def is_the_tree(staged: StagedTree, tree: HostTree, when: str) -> HostTree:
    """Raise unless a staged tree resolves to `tree`."""
    found = staged.resolve()
    for name in ("cu_nodes", *FIELDS):
        array = getattr(found, name)
        is_int64 = isinstance(array, np.ndarray) and array.dtype == np.int64
        expect(is_int64, f"{name} {when} is {getattr(array, 'dtype', type(array).__name__)}; expected int64")
        same(f"{name} {when}", array.tolist(), getattr(tree, name).tolist())
    return found


@STAGING_CHECKS.add(invariant=3)
def check_the_host_gets_the_tree(make: MakeStaging, topology: Trees = "tree") -> None:
    """`resolve` gives the ids and links of the staged tree: int64, links local, padding without links."""
    for side in sides_taken(make, topology):

        def play(draw: Draw, story: Story, side: Side = side) -> None:
            device = InlineDevice()
            drafts, tree = Drafts(device, topology, side), draw(some_tree(topology))
            story.tell(f"stage, on {side}: {told(tree)}")
            staged = make(device).stage(drafts.draft(tree))
            is_the_tree(staged, tree, f"of a tree on {side}")

        explore(play, max_examples=60)


@STAGING_CHECKS.add(invariant=8)
def check_stage_does_not_wait(make: MakeStaging, topology: Trees = "tree") -> None:
    """`stage` only enqueues: it returns though nothing that the device has to do is done."""
    for side in sides_taken(make, topology):
        device = DelayedDevice()
        make(device).stage(Drafts(device, topology, side).draft(smallest_tree()))
        expect(device.num_done == 0, f"stage of a tree on {side} waited for the device; expected it to enqueue")


@STAGING_CHECKS.add(invariant=8)
def check_resolve_waits_for_the_copy(make: MakeStaging, topology: Trees = "tree") -> None:
    """`resolve` reads host memory only when the draft's work and the copy behind it are done."""
    for side in sides_taken(make, topology):
        device = DelayedDevice()
        tree = smallest_tree()
        staged = make(device).stage(Drafts(device, topology, side).draft(tree))
        is_the_tree(staged, tree, "where nothing had run before `resolve`")


@STAGING_CHECKS.add(invariant=8)
def check_later_work_is_not_seen(make: MakeStaging, topology: Trees = "tree") -> None:
    """The copy is enqueued at `stage`: what is launched behind it may overwrite the device's tree."""
    for side in sides_taken(make, topology):
        kinds: list[Callable[[], Device]] = [DelayedDevice, partial(DelayedDevice, shares_host_memory=True)]
        for make_device in (*kinds, InlineDevice):
            device, tree = make_device(), smallest_tree()
            drafts = Drafts(device, topology, side)
            staged = make(device).stage(drafts.draft(tree))
            drafts.go_on()
            device.record().wait()
            is_the_tree(staged, tree, f"where later work writes {_OVERWRITTEN} over the device's tree")


@STAGING_CHECKS.add(invariant=8)
def check_trees_in_flight(make: MakeStaging, topology: Trees = "tree") -> None:
    """Several trees may be on their way, be resolved in any order, and keep what they hold."""
    for side in sides_taken(make, topology):

        def play(draw: Draw, story: Story, side: Side = side) -> None:
            device = DelayedDevice()
            drafts, strategy = Drafts(device, topology, side), make(device)
            waiting: list[tuple[int, StagedTree, HostTree]] = []
            resolved: list[tuple[int, StagedTree, HostTree]] = []
            for number in range(draw(st.integers(1, 3))):
                tree = draw(some_tree(topology))
                story.tell(f"draft and stage tree {number}: {told(tree)}")
                waiting.append((number, strategy.stage(drafts.draft(tree)), tree))
                drafts.go_on()
                if num_pieces := draw(st.integers(0, min(5, device.num_pending))):
                    story.tell(f"the device runs {num_pieces} of {device.num_pending} pieces of work")
                    device.run(num_pieces)
                if draw(st.booleans()):
                    resolved.append(waiting.pop(draw(st.integers(0, len(waiting) - 1))))
                    story.tell(f"resolve tree {resolved[-1][0]}")
                    is_the_tree(*resolved[-1][1:], f"of tree {resolved[-1][0]}")
            story.tell("the device runs everything; resolve all of them")
            device.run_all()
            for number, staged, tree in (*waiting, *resolved):
                is_the_tree(staged, tree, f"of tree {number}")

        explore(play, max_examples=60)


@STAGING_CHECKS.add(invariant=8)
def check_resolve_is_idempotent(make: MakeStaging, topology: Trees = "tree") -> None:
    """Later calls of `resolve` return the first one's tree; nothing is enqueued or copied again."""
    for side in sides_taken(make, topology):
        device, tree = DelayedDevice(), smallest_tree()
        drafts = Drafts(device, topology, side)
        staged = make(device).stage(drafts.draft(tree))
        first = staged.resolve()
        drafts.go_on()
        num_pending, num_done = device.num_pending, device.num_done
        again = staged.resolve()
        expect(again is first, f"a second `resolve` of a tree on {side} returned another tree than the first")
        is_quiet = (device.num_pending, device.num_done) == (num_pending, num_done)
        expect(is_quiet, f"a second `resolve` of a tree on {side} gave the device work, or waited for it")


@STAGING_CHECKS.add(invariant=8)
def check_the_hosts_parts_are_not_copied(make: MakeStaging, topology: Trees = "tree") -> None:
    """What the host has already is used as it is."""
    for side in sides_taken(make, topology):
        if side == "device":
            continue
        device, tree = DelayedDevice(), smallest_tree()
        found = make(device).stage(Drafts(device, topology, side).draft(tree)).resolve()
        parts = {"host": FIELDS, "both": FIELDS[2:]}[side] if topology == "tree" else FIELDS[: side == "host"]
        for name in parts:
            is_same = np.shares_memory(getattr(found, name), getattr(tree, name))
            expect(is_same, f"{name}, which the host had, was copied; expected the host's own array")


@STAGING_CHECKS.add(invariant=9)
def check_a_failed_draft_is_told(make: MakeStaging, topology: Trees = "tree") -> None:
    """Where the work that makes the tree raised, each `resolve` raises that, and `stage` does not."""
    for side in sides_taken(make, topology):
        if side == "host":
            continue
        for device in (DelayedDevice(), InlineDevice()):
            draft = Drafts(device, topology, side).draft(smallest_tree(), error=_DraftError("no memory"))
            staged = make(device).stage(draft)
            for call in ("the first", "a second"):
                with expect_raise(_DraftError, f"{call} `resolve` of a tree whose draft work raised"):
                    staged.resolve()


@STAGING_CHECKS.add(invariant=10)
def check_what_is_missing_is_refused(make: MakeStaging, topology: Trees = "tree") -> None:
    """A part that is on neither side, or of another dtype or length, makes `stage` raise TreeError."""
    if "device" not in sides_taken(make, topology):
        _refuses(make, DeviceTree(), "a tree without parts")
        return
    device = InlineDevice()
    whole = Drafts(device, "tree", "device").draft(smallest_tree()).device
    for name in FIELDS if topology == "tree" else FIELDS[:1]:
        part = getattr(whole, name)
        _refuses(make, replace(whole, **{name: None}), f"a tree without {name}")
        _refuses(make, replace(whole, **{name: part.int()}), f"a tree whose {name} is int32")
        _refuses(make, replace(whole, **{name: part[:-1]}), f"a tree whose {name} lacks its last node")
        _refuses(make, replace(whole, **{name: part[None]}), f"a tree whose {name} has two dimensions")


class _DraftError(Exception):
    """What a check's draft work raises."""


def _refuses(make: MakeStaging, parts: DeviceTree, what: str) -> None:
    draft = DraftTree(0, smallest_tree().cu_nodes, device=parts)
    with expect_raise(TreeError, f"stage of {what}"):
        make(InlineDevice()).stage(draft)
