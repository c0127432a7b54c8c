"""`ngram`: draft trees out of what was written before, without a model.

Where the last tokens of a request occurred before, the text went on somehow; each such occurrence votes for
its continuation with the length of its match. Occurrences in the request's own history come first, then those
in a corpus that requests share. Where they agree the tree is a chain, where they differ it branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from specgrammar.checks import check_choice, check_int
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    Topology,
)
from specgrammar.spec.corpus import History, NgramIndex, SharedCorpus
from specgrammar.spec.lookup import Histories
from specgrammar.spec.options import check_match_lengths
from specgrammar.trees.tree import DraftTree, HostTree

# Half as many lost 1 % of accepted tokens on function calls and on code, twice as many won nothing.
_MAX_VOTERS = 16

# Held back for a token that was never seen here. On the same texts this makes the scores fit the rates at
# which nodes were accepted.
_UNSEEN_VOTES = 1

_SOURCES = ("ngram.history", "ngram.shared")
_HISTORY, _SHARED = range(2)

# Plain tuples: named ones made proposals three times as slow.
_Node = tuple[int, int, float, int]
"""A token, its parent's number (-1: none), its share of the parent's votes, and whose occurrence it was."""
_Voter = tuple[list[int], int, int]
"""An occurrence: how it went on, how many votes it has, and where it was found."""


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
        capacity: tokens that the shared corpus keeps; the oldest go first. About 0.4 kB of memory each.
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
        lengths = options.min_match, options.max_match, _MAX_VOTERS
        self._shared = SharedCorpus(NgramIndex(*lengths), options.capacity) if options.shared else None
        self._histories = Histories(*lengths, self._shared)

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One tree per request; see `TreeProducer`. Scores are the shares of votes."""
        options = self._options
        nodes: list[_Node] = []
        cu_nodes = [0]
        for view in batch.requests:
            history = self._histories.history(view)
            depth = min(options.depth, view.max_draft_tokens)
            nodes.append((view.tokens[-1], -1, 1.0, _HISTORY))
            if depth > 0:
                nodes += _merge(self._voters(history, depth), options.num_draft_tokens, options.breadth)
            cu_nodes.append(len(nodes))

        cu = np.array(cu_nodes, dtype=np.int64)
        tokens, parents, scores, sources = zip(*nodes, strict=True) if nodes else ((), (), (), ())
        host = HostTree.from_parents(cu, np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64))
        return DraftTree.from_host(
            batch.step,
            host,
            score=np.array(scores, dtype=np.float32),
            source=np.array(sources, dtype=np.int16),
            sources=_SOURCES,
        )

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn what was committed."""
        self._histories.observe(commits)

    def _voters(self, history: History, depth: int) -> list[_Voter]:
        """The occurrences of what `history` ends with: longest match first, then its own, then most recent."""
        voters: list[_Voter] = []
        seen: set[tuple[int, int]] = set()
        corpora = ((_HISTORY, history), (_SHARED, self._shared))
        context = history.context()
        for length in range(self._options.max_match, self._options.min_match - 1, -1):
            for source, corpus in corpora:
                if corpus is None:
                    continue
                for place in corpus.index.places(context, length):
                    if (source, place) in seen:
                        continue
                    seen.add((source, place))
                    voters.append((corpus.continuation(place, depth), length, source))
                    if len(voters) == _MAX_VOTERS:
                        return voters
        return voters


def _merge(voters: list[_Voter], num_nodes: int, breadth: int) -> list[_Node]:
    """The `num_nodes` nodes that are most likely to be accepted, the likeliest first, without the root.

    A node's chance is the product of the scores on its path, so it is below its parent's and comes behind it.
    Among equals the one that was found first comes first.
    """
    nodes: list[_Node] = []
    # (-chance, number in order of discovery, node, its voters, its level); the second decides between equals
    candidates: list[tuple[float, int, _Node, list[_Voter], int]] = []
    num_found = 0
    chance, number, level = 1.0, 0, 0
    while len(nodes) < num_nodes:
        for token, score, members in _children(voters, level, breadth):
            node = (token, number, score, members[0][2])
            heappush(candidates, (-chance * score, num_found, node, members, level + 1))
            num_found += 1
        if not candidates:
            break
        negative, _, node, voters, level = heappop(candidates)
        nodes.append(node)
        chance, number = -negative, len(nodes)
    return nodes


def _children(voters: list[_Voter], level: int, breadth: int) -> list[tuple[int, float, list[_Voter]]]:
    """The `breadth` tokens with most votes at a level of the continuations: token, share of votes, voters."""
    total = _UNSEEN_VOTES
    votes_for: dict[int, int] = {}
    voters_for: dict[int, list[_Voter]] = {}
    for voter in voters:
        continuation, votes, _ = voter
        if level < len(continuation):
            token = continuation[level]
            total += votes
            if token in votes_for:
                votes_for[token] += votes
                voters_for[token].append(voter)
            else:
                votes_for[token] = votes
                voters_for[token] = [voter]
    # Sorting is stable: of equal ones, the token that the earliest voter is for stays first.
    ranked = sorted(votes_for, key=votes_for.__getitem__, reverse=True)[:breadth]
    return [(token, votes_for[token] / total, voters_for[token]) for token in ranked]
