"""Algorithms whose producers each break one clause."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    SpecAlgorithm,
    Topology,
)
from specgrammar.spec.chain import ChainAlgorithm, ModelProducer
from specgrammar.testing.checks.producer import PRODUCER_CHECKS
from specgrammar.trees.tree import DraftTree, HostTree, SampledProposals
from tests.conformance.cases import Broken

Drafts = list[tuple[int, int]]
"""Token and parent of each node behind the root."""

TREE = Topology("tree", max_nodes=4, max_depth=2)


class Copier:
    """Keeps the contract: after the last token, what came after it before, or its neighbours."""

    needs: Needs = "history"

    def __init__(self, context: ProducerContext) -> None:
        self.context = context

    def drafts(self, view: RequestView) -> Drafts:
        """Two children of the root, and one of the first."""
        last = view.tokens[-1]
        nodes = [((last + 1) % 16, 0), ((last + 2) % 16, 0), ((last + 3) % 16, 1)]
        return nodes[: (0, 2, 3)[min(2, view.max_draft_tokens)]]

    def root(self, view: RequestView) -> int:
        """Its last token."""
        return view.tokens[-1]

    def host(self, batch: DecodeBatch) -> HostTree:
        """The nodes of all requests."""
        trees = [[(self.root(view), -1), *self.drafts(view)] for view in batch.requests]
        cu_nodes = np.cumsum([0, *map(len, trees)], dtype=np.int64)
        nodes = np.array([node for tree in trees for node in tree], np.int64).reshape(-1, 2)
        return HostTree.from_parents(cu_nodes, nodes[:, 0].copy(), nodes[:, 1].copy())

    def propose(self, batch: DecodeBatch) -> DraftTree:
        return DraftTree.from_host(batch.step, self.host(batch))

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True)
class Algorithm:
    """Makes a producer of a class."""

    producer: type[Any]
    topology: Topology = TREE
    proposal: Proposal = Proposal.POINT
    overlaps: bool = False
    api_version: Literal[1] = 1

    def supports_grammar_overlap(self) -> bool:
        return self.overlaps

    def make_producer(self, context: ProducerContext) -> Any:
        return self.producer(context)


# -- which step, which requests ------------------------------------------------------------------------------


class LastTree(Copier):
    last: DraftTree | None = None

    def propose(self, batch: DecodeBatch) -> DraftTree:
        last, self.last = self.last, super().propose(batch)
        return self.last if last is None else last


class LastTreeStampedAnew(LastTree):
    def propose(self, batch: DecodeBatch) -> DraftTree:
        return replace(super().propose(batch), step=batch.step)


class WithoutUndrafted(Copier):
    def propose(self, batch: DecodeBatch) -> DraftTree:
        drafted = tuple(view for view in batch.requests if view.max_draft_tokens)
        return super().propose(DecodeBatch(batch.step, drafted))


class InOrderOfIds(Copier):
    def propose(self, batch: DecodeBatch) -> DraftTree:
        by_id = sorted(batch.requests, key=lambda view: view.request_id)
        return super().propose(DecodeBatch(batch.step, tuple(by_id)))


class RootsArePrevious(Copier):
    def root(self, view: RequestView) -> int:
        return view.tokens[-2:][0]


class BehindWhatWasObserved(Copier):
    """Its own copy of each history grows by `observe`, which comes when it comes."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.last: dict[str, int] = {}

    def root(self, view: RequestView) -> int:
        return self.last.setdefault(view.request_id, view.tokens[-1])

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.finished:
                self.last.pop(commit.request_id, None)
            elif commit.request_id in self.last:
                self.last[commit.request_id] = commit.tokens[-1]


class KeptById(Copier):
    """A history is taken over once, and continued by what is new; nobody drops it."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.histories: dict[str, list[int]] = {}

    def root(self, view: RequestView) -> int:
        history = self.histories.setdefault(view.request_id, [])
        history += view.tokens[len(history) :]
        return history[-1]


# -- form ----------------------------------------------------------------------------------------------------


class RootsArePadding(Copier):
    def root(self, view: RequestView) -> int:  # noqa: ARG002  # the fault
        return -1


class WithLinks(Copier):
    """Links are made by hand."""

    def change(self, host: HostTree) -> None:
        raise NotImplementedError

    def host(self, batch: DecodeBatch) -> HostTree:
        host = super().host(batch)
        self.change(host)
        return host


class ChildrenFirst(WithLinks):
    """Numbered from the leaves to the root, but for the root itself."""

    def change(self, host: HostTree) -> None:
        for request in range(host.bs):
            nodes = host.request_slice(request)
            if nodes.stop - nodes.start == 4:
                host.retrieve_next_token[nodes] = [3, -1, -1, 1]
                host.retrieve_next_sibling[nodes] = [-1, -1, -1, 2]


class GlobalLinks(WithLinks):
    def change(self, host: HostTree) -> None:
        for request in range(host.bs):
            nodes = host.request_slice(request)
            for links in (host.retrieve_next_token, host.retrieve_next_sibling):
                links[nodes] += np.where(links[nodes] >= 0, nodes.start, 0)


class CutWithoutUnlinking(WithLinks):
    def change(self, host: HostTree) -> None:
        for request in range(host.bs):
            nodes = host.request_slice(request)
            host.draft_tokens[nodes.start + 1 : nodes.stop][2:] = -1


class IdsOfAnother(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return [(token + 16, parent) for token, parent in super().drafts(view)]


# -- size ----------------------------------------------------------------------------------------------------


class Unlimited(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return super().drafts(replace(view, max_draft_tokens=9))


class TooMany(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return [*super().drafts(view), (4, 0)] if view.max_draft_tokens > 1 and view.tokens[-1] < 2 else []


class TooDeep(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return [(1, 0), (2, 1), (3, 2)][: view.max_draft_tokens]


class Twins(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return [(5, 0), (5, 0)] if view.max_draft_tokens else []


# -- what is said of nodes -----------------------------------------------------------------------------------


class Saying(Copier):
    def said(self, host: HostTree) -> dict[str, Any]:
        raise NotImplementedError

    def propose(self, batch: DecodeBatch) -> DraftTree:
        tree = super().propose(batch)
        assert tree.host is not None
        return replace(tree, **self.said(tree.host))


class DoubleScores(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"score": np.full(host.num_nodes, 0.5)}


class ScoresOfRequests(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"score": np.full(host.bs, 0.5, np.float32)}


class LogScores(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"score": np.full(host.num_nodes, -0.7, np.float32)}


class SourceWithoutName(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"source": np.ones(host.num_nodes, np.int16), "sources": ("copier",)}


def _drawn(host: HostTree, columns: int = 19) -> SampledProposals:
    rows = np.arange(host.num_nodes, dtype=np.int64)
    rows[host.cu_nodes[:-1]] = -1
    q = torch.zeros(max(1, host.num_nodes), columns)
    q[torch.arange(host.num_nodes), torch.from_numpy(host.draft_tokens)] = 1.0
    return SampledProposals(rows, q)


class DrawnThoughPoint(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"sampled": _drawn(host)}


class DrawnRoots(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"sampled": replace(_drawn(host), row_of_node=np.arange(host.num_nodes, dtype=np.int64))}


class Unnormalised(Saying):
    def said(self, host: HostTree) -> dict[str, Any]:
        return {"sampled": replace(_drawn(host), q=_drawn(host).q * 0.5)}


class RowsOfParents(Saying):
    """Each node names the distribution of its parent's own draw."""

    def said(self, host: HostTree) -> dict[str, Any]:
        drawn = _drawn(host)
        return {"sampled": replace(drawn, row_of_node=np.maximum(drawn.row_of_node - 1, -1))}


# -- what is done ----------------------------------------------------------------------------------------------


class WritesHistories(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        drafts = super().drafts(view)
        view.tokens.extend(token for token, _ in drafts)  # type: ignore[attr-defined]  # the fault
        return drafts

    def root(self, view: RequestView) -> int:
        return view.tokens[view.num_tokens - 1]


class NoEmptyBatch(Copier):
    def propose(self, batch: DecodeBatch) -> DraftTree:
        longest = max(view.num_tokens for view in batch.requests)
        assert longest
        return super().propose(batch)


class NoZero(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        drafts = super().drafts(view)
        return drafts if drafts[0][0] >= 0 else []


class Random(Copier):
    def drafts(self, view: RequestView) -> Drafts:
        return [(random.randrange(16), 0)] if view.max_draft_tokens else []


class NeverForgets(Copier):
    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.texts: dict[str, tuple[int, ...]] = {}

    def drafts(self, view: RequestView) -> Drafts:
        self.texts[view.request_id] = tuple(view.tokens)
        return super().drafts(view)


class KeepsTables(Copier):
    """Which token followed which, of every request that ever was: little of each, and never gone."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.tables: dict[str, dict[int, int]] = {}

    def drafts(self, view: RequestView) -> Drafts:
        table: dict[int, int] = {}
        for token, following in pairwise(view.tokens):
            table[token] = following
        self.tables[view.request_id] = table
        return super().drafts(view)


class BusyForGood(ModelProducer):
    """A guard against calls from two threads that a failure leaves closed."""

    is_busy = False

    def propose(self, batch: DecodeBatch) -> DraftTree:
        if self.is_busy:
            raise RuntimeError("drafting already")
        self.is_busy = True
        tree = super().propose(batch)
        self.is_busy = False
        return tree


@dataclass(frozen=True)
class Model(ChainAlgorithm):
    """`chain` with a draft model, and another producer."""

    drafter: str = "toy"
    producer: type[ModelProducer] = ModelProducer

    def make_producer(self, context: ProducerContext) -> ModelProducer:
        return self.producer(self, context.load_drafter(self.drafter), context.device)


# -- what is declared ------------------------------------------------------------------------------------------


class Mutable(Algorithm):
    """Frozen in name only."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class EachAnother(Algorithm):
    """Compared by identity."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class ReadsTokens(Copier):
    needs = "tokens"  # type: ignore[assignment]  # the fault


def of(producer: type[Any], **options: Any) -> Callable[[], SpecAlgorithm]:
    return partial(Algorithm, producer, **options)


_SAMPLED = {"proposal": Proposal.SAMPLED}
_PLACE = "check_trees_belong_to_their_batch"
_FORM = "check_trees_are_well_formed"
_SIZE = "check_trees_are_as_small_as_declared"
_NODES = "check_what_is_said_of_nodes"
_DRAWS = "check_draws_state_their_distributions"
_VALUE = "check_an_algorithm_is_a_value"

_CASES: tuple[tuple[str, Callable[[], Any], str, str], ...] = (
    ("hands out the tree of the step before", of(LastTree), _PLACE, "carries step 0; it was made for step 1"),
    ("stamps the tree of the step before anew", of(LastTreeStampedAnew), _PLACE, "the tree has|root is"),
    ("leaves out requests that need no draft", of(WithoutUndrafted), _PLACE, r"the tree has \d requests"),
    ("proposes in the order of ids", of(InOrderOfIds), _PLACE, "root is"),
    ("begins with the last token but one", of(RootsArePrevious), _PLACE, "root is"),
    ("begins behind what was observed so far", of(BehindWhatWasObserved), _PLACE, "root is"),
    (
        "keeps a history for the next request of its id",
        of(KeptById),
        "check_an_id_may_be_used_again",
        "root is",
    ),
    ("begins with padding", of(RootsArePadding), _FORM, "is a root and padding"),
    ("numbers children before their parents", of(ChildrenFirst), _FORM, "does not lie behind it"),
    ("counts links over the whole batch", of(GlobalLinks), _FORM, "malformed"),
    ("cuts nodes and leaves the links to them", of(CutWithoutUnlinking), _FORM, "which is padding"),
    ("drafts ids that are no tokens", of(IdsOfAnother), _FORM, "the vocabulary has"),
    ("ignores max_draft_tokens", of(Unlimited), _SIZE, "its max_draft_tokens is"),
    ("has more nodes than declared", of(TooMany), _SIZE, "has 5 nodes; the topology says at most 4"),
    ("is deeper than declared", of(TooDeep), _SIZE, "path of 3 draft tokens; the topology says at most 2"),
    (
        "branches though a chain",
        of(Copier, topology=replace(TREE, kind="chain")),
        _SIZE,
        "the topology is a chain",
    ),
    ("proposes a token twice behind one node", of(Twins), _SIZE, "siblings that are not distinct"),
    ("scores in float64", of(DoubleScores), _NODES, "score is float64"),
    ("scores requests, not nodes", of(ScoresOfRequests), _NODES, r"score is float32 \[\d\]"),
    ("scores are logarithms", of(LogScores), _NODES, r"expected \[0, 1\]"),
    ("names no source", of(SourceWithoutName), _NODES, "expected indices into sources"),
    ("states q though POINT", of(DrawnThoughPoint), _DRAWS, "proposal is POINT"),
    ("states q of roots", of(DrawnRoots, **_SAMPLED), _DRAWS, "a root is never drawn"),
    ("q does not sum to one", of(Unnormalised, **_SAMPLED), _DRAWS, "sums to 0.5"),
    ("names another node's q", of(RowsOfParents, **_SAMPLED), _DRAWS, "probability 0"),
    ("writes drafts into the history", of(WritesHistories), "check_views_are_read_only", "views are read only"),
    ("cannot take an empty batch", of(NoEmptyBatch), "check_an_empty_batch_gives_an_empty_tree", "ValueError"),
    ("cannot draft nothing", of(NoZero), "check_a_request_may_need_no_drafts", "IndexError"),
    ("draws from the process's own generator", of(Random), "check_replicas_propose_alike", "draft_tokens is"),
    ("never forgets a request", of(NeverForgets), "check_finished_requests_are_forgotten", "bytes behind"),
    ("never forgets a summary", of(KeepsTables), "check_finished_requests_are_forgotten", "bytes behind"),
    (
        "stays closed behind a failure",
        partial(Model, producer=BusyForGood),
        "check_a_failure_is_over_with_its_step",
        "drafting already",
    ),
    ("can be changed", partial(Mutable, Copier), _VALUE, "its attributes can be set"),
    (
        "differs from its equal",
        partial(EachAnother, Copier),
        _VALUE,
        "two algorithms of the same options differ",
    ),
    (
        "does not count the root",
        of(Copier, topology=Topology("tree", 3, 3)),
        _SIZE,
        "has 4 nodes; the topology",
    ),
    (
        "overlaps with what it reads",
        of(Copier, overlaps=True),
        "check_what_is_claimed_fits",
        "needs 'history', which a step in flight has not given yet",
    ),
    ("needs what nobody knows", of(ReadsTokens), "check_what_is_claimed_fits", "needs is 'tokens'"),
)

PRODUCERS = [Broken(fault, PRODUCER_CHECKS, make, check, finds) for fault, make, check, finds in _CASES]
