"""`ngram`: draft trees out of what was written before, without a model.

Where the last tokens of a request occurred before, the text went on somehow; each such occurrence votes for
its continuation with the length of its match. Occurrences in the request's own history come first, then those
in a corpus that requests share. Where they agree the tree is a chain, where they differ it branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specgrammar.checks import check_choice, check_int
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
from specgrammar.spec.logs import Lanes
from specgrammar.spec.options import check_match_lengths
from specgrammar.spec.places import NgramPlaces
from specgrammar.spec.requests import RequestHistories
from specgrammar.spec.shared import SharedCorpus
from specgrammar.spec.votes import vote
from specgrammar.trees.tree import DraftTree, HostTree

# Half as many lost 1 % of accepted tokens on function calls and on code, twice as many won nothing.
_MAX_VOTERS = 16

_SOURCES = ("ngram.history", "ngram.shared")
_HISTORY, _SHARED = range(2)


@dataclass(frozen=True)
class NgramAlgorithm:
    """Trees of the continuations of n-grams in prompt, output, and the output of other requests.

    With `shared`, how fast a request is decoded depends on what others wrote; its tokens do not. Turn it off
    where tenants must not learn about each other by timing.

    Attributes:
        num_draft_tokens: most draft tokens of a tree.
        breadth: most children of a node; 1 makes chains.
        depth: most draft tokens on one path.
        min_match: tokens that must match at least for an occurrence to count.
        max_match: tokens that are compared at most; a longer match outvotes a shorter one.
        shared: also learn from, and propose, what other requests wrote (prompts are not shared).
        capacity: tokens that the shared corpus keeps; the oldest go first. About 0.15 kB of memory each.
    """

    num_draft_tokens: int = 7
    breadth: int = 4
    depth: int = 8
    min_match: int = 1
    max_match: int = 4
    shared: bool = True
    capacity: int = 65_536
    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    def __post_init__(self) -> None:
        for option in ("num_draft_tokens", "breadth", "depth", "capacity"):
            check_int(f"ngram: {option}", getattr(self, option), 1)
        check_match_lengths("ngram", self.min_match, self.max_match)
        check_choice("ngram: shared", self.shared, (True, False))

    @property
    def topology(self) -> Topology:
        """Trees of the root and `num_draft_tokens` nodes."""
        kind: Literal["chain", "tree"] = "chain" if self.breadth == 1 else "tree"
        return Topology(kind, 1 + self.num_draft_tokens, min(self.depth, self.num_draft_tokens))

    @property
    def proposal(self) -> Proposal:
        """POINT: nodes are chosen by votes, not drawn."""
        return Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """False: histories are read before the launch. The grammar still advances under the forward."""
        return False

    def make_producer(self, context: ProducerContext) -> NgramProducer:  # noqa: ARG002  # the protocol's
        """Build the producer, with an empty corpus; nothing of the context is used."""
        return NgramProducer(self)


class NgramProducer:
    """Proposes the tree of an `NgramAlgorithm`; the same commits give the same trees on every replica."""

    needs: Needs = "history"

    def __init__(self, options: NgramAlgorithm) -> None:
        """No request and no corpus yet."""
        self._options = options
        self._places = NgramPlaces(options.min_match, options.max_match)
        self._shared = SharedCorpus(self._places, options.capacity) if options.shared else None
        self._histories = RequestHistories(self._places, self._shared)

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One tree per request; see `TreeProducer`. Scores are the shares of votes."""
        options, views = self._options, batch.requests
        if not views:
            return DraftTree.from_host(batch.step, HostTree.roots([]), sources=_SOURCES)
        histories = self._histories.update(views)
        depths = np.array([min(options.depth, view.max_draft_tokens) for view in views], dtype=np.int64)
        depth = int(depths.max(initial=0))
        lanes = Lanes.of(histories)
        places, votes, sources = self._voters(lanes, self._places.contexts(lanes))
        continuations = self._continuations(lanes, places, sources, depth)
        np.copyto(continuations, -1, where=np.arange(depth)[:, None, None] >= depths)
        nodes = vote(continuations, votes, options.num_draft_tokens, options.breadth)

        num_nodes = 1 + np.bincount(nodes.request, minlength=len(views))
        cu_nodes = np.concatenate(([0], np.cumsum(num_nodes)))
        index = cu_nodes[nodes.request] + nodes.number
        tokens = np.empty(cu_nodes[-1], dtype=np.int64)
        tokens[cu_nodes[:-1]] = [view.tokens[-1] for view in views]
        tokens[index] = nodes.token
        parents = np.full(len(tokens), -1, dtype=np.int64)
        parents[index] = nodes.parent
        score = np.ones(len(tokens), dtype=np.float32)
        score[index] = nodes.score
        source = np.full(len(tokens), _HISTORY, dtype=np.int16)
        source[index] = sources[nodes.voter, nodes.request]
        host = HostTree.from_parents(cu_nodes, tokens, parents)
        return DraftTree.from_host(batch.step, host, score=score, source=source, sources=_SOURCES)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed."""
        self._histories.observe(commits)

    def continue_behind(
        self, requests: Sequence[RequestView], drafts: Sequence[Sequence[int]], num_tokens: int
    ) -> list[list[int]]:
        """See `SupportsContinuation`: how the text went on at the first of the occurrences that would vote."""
        if not requests or num_tokens < 1:
            return [[] for _ in requests]
        lanes = Lanes.of(self._histories.of(requests))
        places, _, sources = self._voters(lanes, self._places.contexts_behind(lanes, drafts))
        tokens = self._continuations(lanes, places[:1], sources[:1], num_tokens)[:, 0].T.tolist()
        return [[token for token in row if token >= 0] for row in tokens]

    def _voters(
        self, histories: Lanes, contexts: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16]]:
        """Occurrences of contexts of histories: place, votes and whose it is, `[_MAX_VOTERS, bs]` each.

        The longest match comes first, then the history's own, then the most recent. Places are filled with -1.
        """
        logs, bs = histories, len(histories.start)
        if self._shared is not None:
            logs = histories.with_more(Lanes.of_one(self._shared.log, bs))
            contexts = np.concatenate((contexts, contexts), axis=1)
        found = self._places.find(logs, contexts, _MAX_VOTERS)
        # In the order in which they count: by length, source and how recent they are.
        most, num_lengths, num_lanes = found.shape
        num_sources = num_lanes // bs
        found = found.reshape(most, num_lengths, num_sources, bs).transpose(1, 2, 0, 3).reshape(-1, bs)
        is_found = found >= 0
        rank = np.cumsum(is_found, axis=0) - 1
        row, request = np.nonzero(is_found & (rank < _MAX_VOTERS))
        voter = rank[row, request]
        places, votes = (
            np.full((_MAX_VOTERS, bs), -1, dtype=np.int64),
            np.zeros((_MAX_VOTERS, bs), dtype=np.int64),
        )
        sources = np.zeros((_MAX_VOTERS, bs), dtype=np.int16)
        places[voter, request] = found[row, request]
        length, source = np.divmod(row // most, num_sources)
        votes[voter, request] = self._places.lengths[length]
        sources[voter, request] = source
        return places, votes, sources

    def _continuations(
        self, histories: Lanes, places: NDArray[np.int64], sources: NDArray[np.int16], depth: int
    ) -> NDArray[np.int32]:
        """How the text went on at each place: int32 `[depth, voters, bs]`, -1 from where the corpus ends."""
        continuations = np.full((depth, *places.shape), -1, dtype=np.int32)
        voter, request = np.nonzero((places >= 0) & (sources == _HISTORY))
        copied = self._places.copy_from(histories[request], places[voter, request], depth)
        continuations[:, voter, request] = copied
        if self._shared is not None:
            voter, request = np.nonzero(sources == _SHARED)
            continuations[:, voter, request] = self._shared.continuations(places[voter, request], depth)
        return continuations
