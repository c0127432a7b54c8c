"""What became of the drafts of each source, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.trees.tree import DraftTree


@dataclass
class SourceCounts:
    """The drafts of one source.

    Attributes:
        num_proposed: before anything was cut on the host; what a device cut of its tree nobody proposed.
        num_legal: of these, those that the grammar does not forbid, as far as it was asked: a draft that is cut
            or masked for a lazily masked row counts as legal unless it was seen not to be.
        num_pruned: of these, those that were cut before the forward: illegal, or over the budget.
        num_verified: the others.
        num_accepted: of these, those that were committed.
        drafting_s: host seconds of drafting; None where they are not known for every step.
    """

    num_proposed: int = 0
    num_legal: int = 0
    num_pruned: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    drafting_s: float | None = 0.0

    def cost_per_accepted_s(self, node_s: float | None) -> float | None:
        """Seconds for each accepted draft: of verifying all, at `node_s` a node, and of drafting them.

        None where one of the two was not measured, or nothing was accepted.
        """
        if node_s is None or self.drafting_s is None or not self.num_accepted:
            return None
        return (self.num_verified * node_s + self.drafting_s) / self.num_accepted


@dataclass
class _Sums:
    """Of the steps of one batch size: how many, and sums over their nodes and seconds, for a straight line."""

    num: int = 0
    nodes: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    @property
    def spread(self) -> float:
        """How far sizes are from their mean, squared and summed."""
        return self.squares - self.nodes**2 / self.num

    @property
    def rise(self) -> float:
        """The same of sizes with seconds."""
        return self.products - self.nodes * self.seconds / self.num


@dataclass
class NodeCosts:
    """What one more node costs a step, from steps that the host saw from their launch to their paths.

    The slope of the least-squares line through them, with an offset for each batch size.
    """

    _by_batch_size: dict[int, _Sums] = field(default_factory=dict)
    _has_begun: bool = False

    def add(self, bs: int, num_nodes: int, seconds: float) -> None:
        """A step of some requests with so many nodes took that long; the first of all only loads code."""
        if not self._has_begun:
            self._has_begun = True
            return
        sums = self._by_batch_size.setdefault(bs, _Sums())
        sums.num += 1
        sums.nodes += num_nodes
        sums.seconds += seconds
        sums.squares += num_nodes**2
        sums.products += num_nodes * seconds

    def per_node_s(self) -> float | None:
        """Seconds that a node adds; None where steps did not differ in size, or where larger took no longer."""
        spread = sum(sums.spread for sums in self._by_batch_size.values())
        rise = sum(sums.rise for sums in self._by_batch_size.values())
        return rise / spread if spread > 0.5 and rise > 0 else None  # sizes that differ at all differ by one


@dataclass
class SourceTable:
    """The counts of every source that a tree named.

    Attributes:
        counts: by the source's name.
        costs: of verified nodes.
    """

    counts: dict[str, SourceCounts] = field(default_factory=dict)
    costs: NodeCosts = field(default_factory=NodeCosts)

    def add(self, tree: DraftTree, status: NDArray[np.int8], drafting_s: float | None) -> None:
        """Count a step's drafts; a tree without `sources` says nothing.

        Args:
            tree: as it was verified.
            status: int8 `[num_nodes]` of `NodeStatus`.
            drafting_s: host seconds that the whole tree took; None where the host did not do all of it.
        """
        source = sources_of(tree)
        if source is None:
            return
        is_draft = status != NodeStatus.PADDING
        is_draft[tree.cu_nodes[:-1]] = False
        verified = np.bincount(source[is_draft], minlength=len(tree.sources)).tolist()
        illegal = np.bincount(
            source[is_draft & (status == NodeStatus.REJECTED)], minlength=len(tree.sources)
        ).tolist()
        pruned = Counter((draft.source, draft.why) for draft in tree.pruned)
        for number, name in enumerate(tree.sources):
            counts = self.counts.setdefault(name, SourceCounts())
            num_illegal, num_over = pruned[number, "illegal"], pruned[number, "budget"]
            counts.num_verified += verified[number]
            counts.num_pruned += num_illegal + num_over
            counts.num_proposed += verified[number] + num_illegal + num_over
            counts.num_legal += verified[number] - illegal[number] + num_over
            spent = tree.drafting_s[number] if tree.drafting_s else None
            if spent is None and len(tree.sources) == 1:
                spent = drafting_s
            known = counts.drafting_s
            counts.drafting_s = None if known is None or spent is None else known + spent

    def accept(self, accepted: Mapping[str, int]) -> None:
        """Count drafts that were committed, by source."""
        for name, number in accepted.items():
            self.counts.setdefault(name, SourceCounts()).num_accepted += number


def sources_of(tree: DraftTree) -> NDArray[np.int64] | None:
    """Each node's index into the tree's `sources`, int64 `[num_nodes]`; None where the tree does not say."""
    if tree.source is not None and tree.sources:
        return tree.source.astype(np.int64)
    return np.zeros(tree.num_nodes, np.int64) if len(tree.sources) == 1 else None
