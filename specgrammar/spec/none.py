"""`none`: no speculation. A tree of the root alone makes the step ordinary decoding, on the same path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    Topology,
)
from specgrammar.protocols.staging import Device
from specgrammar.spec.roots import roots_tree
from specgrammar.trees.tree import DraftTree


@dataclass(frozen=True)
class NoSpeculation:
    """Ordinary decoding: each step verifies the last committed token and commits one more."""

    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    @property
    def topology(self) -> Topology:
        """The root, and nothing behind it."""
        return Topology("chain", max_nodes=1, max_depth=0)

    @property
    def proposal(self) -> Proposal:
        """POINT; there is no node that it would say something about."""
        return Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """True: the root is taken from where the step before leaves it."""
        return True

    def make_producer(self, context: ProducerContext) -> RootProducer:
        """Build the producer."""
        return RootProducer(context.device)


class RootProducer:
    """Proposes each request's root."""

    needs: Needs = "nothing"

    def __init__(self, device: Device) -> None:
        """Roots that the host does not know yet are written on this device's stream."""
        self._device = device

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One node per request."""
        return roots_tree(batch, self._device)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""
