from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specgrammar.checks import check_int
from specgrammar.protocols.spec import Commit, DecodeBatch, Needs, ProducerContext, Proposal, Topology
from specgrammar.trees.tree import DraftTree, HostTree


@dataclass(frozen=True)
class Recall:
    """Where the last token came before, the text may go on as it did then. The fields are the options."""

    num_draft_tokens: int = 4
    api_version: Literal[1] = field(default=1, init=False)
    proposal: Proposal = field(default=Proposal.POINT, init=False)  # chosen, not drawn from a distribution
    needs: Needs = field(default="history", init=False)  # reads committed tokens

    def __post_init__(self) -> None:
        check_int("recall: num_draft_tokens", self.num_draft_tokens, 1)

    @property
    def topology(self) -> Topology:
        return Topology("chain", max_nodes=1 + self.num_draft_tokens, max_depth=self.num_draft_tokens)

    def make_producer(self, context: ProducerContext) -> "Recall":
        return self  # an algorithm that keeps nothing between steps can be its own worker

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One chain per request: its last committed token, then what followed that token the last time."""
        chains = []
        for view in batch.requests:
            tokens, most = list(view.tokens), min(self.num_draft_tokens, view.max_draft_tokens)
            behind = {token: i for i, token in enumerate(tokens[:-1], start=1)}.get(tokens[-1], len(tokens))
            chains.append([tokens[-1], *tokens[behind : behind + most]])
        return DraftTree.from_host(batch.step, HostTree.from_chains(chains))

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed: nothing, here."""
