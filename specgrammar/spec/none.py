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
from specgrammar.trees.tree import DraftTree, HostTree


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
        """False: the root is the last committed token, so the step before has to be resolved."""
        return False

    def make_producer(self, context: ProducerContext) -> RootProducer:  # noqa: ARG002  # the protocol's
        """Build the producer; nothing of the context is used."""
        return RootProducer()


class RootProducer:
    """Proposes each request's root."""

    needs: Needs = "history"

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One node per request."""
        host = HostTree.roots([view.tokens[-1] for view in batch.requests])
        return DraftTree.from_host(batch.step, host)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""
