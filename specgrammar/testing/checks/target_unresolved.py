"""A step that a target verifies before the step in front of it is known to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.results import PublishedStep
from specgrammar.testing.checks.target_play import Play, accepted, seeded, tree_of
from specgrammar.trees.tree import DeviceTree, DraftTree


@dataclass(frozen=True)
class Side:
    """Where a tree's parts are when a device makes it."""

    told: str
    parents: tuple[int, ...]
    links: Literal["device", "host", "none"]


SIDES = (
    Side("with links on the device", (-1, 0, 0, 1), "device"),
    Side("with links on the host", (-1, 0, 0, 1), "host"),
    Side("of chains, without links", (-1, 0, 1), "none"),
)


def play_unresolved(play: Play, side: Side, end: int, has_bonus: bool) -> None:
    """A step, and one behind it that is verified before anything of the first is known to the host."""
    rng = seeded(11)
    play.come("a", tokens := play.some_tokens(rng, 3))
    before = play.some_nodes(rng, tokens[-1], (-1, 0, 0, 1))
    bonus = play.some_tokens(rng, 1)[0] if has_bonus else -1
    batch = play.batch_of(["a"])
    drafted = tree_of(batch.step, [before])
    pending = play.target.verify(batch, drafted)
    play.story.tell(f"verify {play.told(before.tokens)}, and commit the path to node {end} with bonus {bonus}")
    paths = play.launched(accepted([before.path(end)], [bonus]))
    play.target.commit(batch, paths)
    names = ["a", "joins later"][: play.most_requests]
    if len(names) == 2:
        play.come("joins later", play.some_tokens(rng, 2))
    host = drafted.host
    assert host is not None
    status = np.full(len(before.tokens), NodeStatus.FREE, np.int8)
    published = PublishedStep(batch.step, ("a",), host, status, paths, False, 3, False)
    unresolved = published.behind(["a", None][: len(names)], play.adapter.device.torch_device)
    committed = [*before.tokens_to(end), *([bonus] if has_bonus else [])]
    roots = [committed[-1] if committed else tokens[-1], play.histories[names[-1]][-1]]
    trees = {name: play.some_nodes(rng, root, side.parents) for name, root in zip(names, roots, strict=False)}
    told = f"a tree {side.told}, behind a step that is unresolved"
    tree = _made_later(play, tree_of(play.step + 1, [*trees.values()]), side)
    logits = play.verify_tree(names, tree, unresolved, told)
    play.histories["a"] += committed
    play.see(trees, logits, told)
    play.keep_roots(trees)
    pending.wait()


def _made_later(play: Play, tree: DraftTree, side: Side) -> DraftTree:
    """The same tree, made by launched work in memory of the device."""
    host = tree.host
    assert host is not None
    device = play.adapter.device
    arrays = (host.draft_tokens, host.retrieve_next_token, host.retrieve_next_sibling)
    memory = [torch.zeros(tree.num_nodes, dtype=torch.int64, device=device.torch_device) for _ in arrays]

    def draft() -> None:
        for part, array in zip(memory, arrays, strict=True):
            part.copy_(torch.from_numpy(array.copy()))

    made = device.launch(draft, "draft")
    parts = DeviceTree(memory[0])
    if side.links == "device":
        parts = DeviceTree(*memory)
    elif side.links == "host":
        parts = DeviceTree(memory[0], *arrays[1:])
    return DraftTree(tree.step, tree.cu_nodes, device=parts, made=made)
