"""Producers that ask much of an engine: trees that a device made, and drafts that are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    SpecAlgorithm,
    Topology,
    TreeProducer,
    supports_grammar_overlap,
)
from specgrammar.protocols.staging import Device
from specgrammar.testing.late_target import histories, logits_behind
from specgrammar.testing.schedules import Choose
from specgrammar.testing.toys import STOP
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree

_PARENTS = (-1, 0, 0, 1, 3)
"""Every tree: what is likely behind the root and one more child; the likely one goes on twice."""


@dataclass(frozen=True)
class DeviceDrafts:
    """An algorithm whose trees exist on the device alone, and only once its stream has come to them."""

    device: Device
    needs: Needs
    overlaps: bool = True
    api_version: Literal[1] = 1

    def supports_grammar_overlap(self) -> bool:
        """As asked for."""
        return self.overlaps

    @property
    def topology(self) -> Topology:
        """Small trees."""
        return Topology("tree", len(_PARENTS), 3)

    @property
    def proposal(self) -> Proposal:
        """POINT."""
        return Proposal.POINT

    def make_producer(self, context: ProducerContext) -> DeviceProducer:  # noqa: ARG002  # the protocol's
        """A producer."""
        return DeviceProducer(self.device, self.needs)


class DeviceProducer:
    """Launches what writes the trees."""

    def __init__(self, device: Device, needs: Needs) -> None:
        self.needs: Needs = needs
        self._device = device

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """Trees of always the same capacity; what is deeper than a request needs is padding."""
        known, depths = histories(batch), [view.max_draft_tokens for view in batch.requests]
        cu_nodes = np.arange(len(batch) + 1, dtype=np.int64) * len(_PARENTS)
        parts = [torch.full((int(cu_nodes[-1]),), -5, dtype=torch.int64) for _ in range(3)]

        def draft() -> None:
            tokens, parents = [], []
            for history, depth in zip(known(), depths, strict=True):
                for token, parent in _tree(history, depth):
                    tokens.append(token)
                    parents.append(parent)
            host = HostTree.from_parents(cu_nodes, np.array(tokens, np.int64), np.array(parents, np.int64))
            made = (host.draft_tokens, host.retrieve_next_token, host.retrieve_next_sibling)
            for part, array in zip(parts, made, strict=True):
                part.copy_(torch.from_numpy(array))

        made = self._device.launch(draft, "draft")
        return DraftTree(batch.step, cu_nodes, device=DeviceTree(*parts), made=made)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""


def _tree(history: list[int], max_depth: int) -> list[tuple[int, int]]:
    """Token and parent of each node."""
    nodes = [(history[-1], -1)]
    paths, depths = [history[-3:]], [0]
    for node, parent in enumerate(_PARENTS[1:], 1):
        best = logits_behind(paths[parent])[: STOP + 1].topk(2).indices.tolist()
        token = best[node == 2]
        paths.append([*paths[parent], token])
        depths.append(depths[parent] + 1)
        nodes.append((token, parent) if depths[-1] <= max_depth else (-1, -1))
    return nodes


@dataclass(frozen=True)
class SometimesLate:
    """An algorithm whose producer now and then hands out the tree that it made the last time."""

    algorithm: SpecAlgorithm
    choose: Choose
    api_version: Literal[1] = 1

    @property
    def topology(self) -> Topology:
        """As the algorithm's."""
        return self.algorithm.topology

    @property
    def proposal(self) -> Proposal:
        """As the algorithm's."""
        return self.algorithm.proposal

    def supports_grammar_overlap(self) -> bool:
        """As the algorithm does."""
        return supports_grammar_overlap(self.algorithm)

    def make_producer(self, context: ProducerContext) -> LateProducer:
        """The algorithm's, made late."""
        return LateProducer(self.algorithm.make_producer(context), self.choose)


class LateProducer:
    """A tree of the host's may come with the stamp of today: then only its roots tell."""

    def __init__(self, producer: TreeProducer, choose: Choose) -> None:
        self.needs: Needs = producer.needs
        self.num_late = 0
        self._producer, self._choose = producer, choose
        self._last: DraftTree | None = None

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """The producer's tree, or its last one."""
        last, self._last = self._last, self._producer.propose(batch)
        if last is None or self._choose(5):
            return self._last
        self.num_late += 1
        return replace(last, step=batch.step) if last.host is not None and self._choose(2) else last

    def observe(self, commits: Sequence[Commit]) -> None:
        """The producer's."""
        self._producer.observe(commits)
