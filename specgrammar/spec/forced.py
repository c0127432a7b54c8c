"""`forced`: what the grammar leaves no choice about, as drafts.

Engines that commit forced text as it stands ("jump-forward") have to choose one of its tokenisations, and to
re-tokenise what was committed. As drafts forced tokens need neither: the target verifies them like any others,
and the output is the same whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from specgrammar.checks import check_int
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    Topology,
)
from specgrammar.spec.spelling import ForcedRun, LearntSpelling
from specgrammar.trees.tree import DraftTree, HostTree


@dataclass(frozen=True)
class ForcedAlgorithm:
    """Chains of the tokens that spell what the grammar forces, as the tokenizer spells it.

    A request without a grammar, or whose grammar has a choice, has no drafts.

    Attributes:
        num_draft_tokens: most draft tokens.
    """

    num_draft_tokens: int = 16
    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    def __post_init__(self) -> None:
        check_int("forced: num_draft_tokens", self.num_draft_tokens, 1)

    @property
    def topology(self) -> Topology:
        """Chains of the root and `num_draft_tokens` nodes."""
        return Topology("chain", 1 + self.num_draft_tokens, self.num_draft_tokens)

    @property
    def proposal(self) -> Proposal:
        """POINT: there is one text, and one spelling of it."""
        return Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """False: the grammar is asked before the launch."""
        return False

    def make_producer(self, context: ProducerContext) -> ForcedProducer:
        """Build the producer."""
        return ForcedProducer(self, context)


class ForcedProducer:
    """Proposes what has to come, and learns how the target spells it.

    Attributes:
        spelling: how texts are spelt.
    """

    needs: Needs = "grammar"

    def __init__(self, options: ForcedAlgorithm, context: ProducerContext) -> None:
        """No request and no habits of the target yet."""
        self.spelling: LearntSpelling = LearntSpelling(context.vocabulary)
        self._num_draft_tokens = options.num_draft_tokens
        self._runs: dict[str, list[ForcedRun]] = {}

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One chain per request, see `TreeProducer`."""
        chains = self.continue_behind(batch.requests, [()] * len(batch), self._num_draft_tokens)
        nodes = [
            [view.tokens[-1], *chain[: view.max_draft_tokens]]
            for view, chain in zip(batch.requests, chains, strict=True)
        ]
        host = HostTree.from_chains(nodes)
        source = np.zeros(host.num_nodes, np.int16)
        return DraftTree.from_host(batch.step, host, source=source, sources=("forced",))

    def continue_behind(
        self, requests: Sequence[RequestView], drafts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[list[int]]:
        """See `SupportsContinuation`."""
        chains: list[list[int]] = []
        for view, behind in zip(requests, drafts, strict=True):
            text = b"" if view.grammar is None else view.grammar.forced_text(behind)
            if not text:
                chains.append([])
                continue
            run = self.spelling.draft(behind, view.tokens[-1], text, num_tokens)
            self._runs.setdefault(view.request_id, []).append(run)
            chains.append(run.chain)
        return chains

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn how the target spelt what was forced."""
        for commit in commits:
            for run in self._runs.pop(commit.request_id, ()):
                self.spelling.learn(run, commit.tokens)
