"""`MergedProducer`: a step's drafts of all sources, the best of them in one tree.

first      what the grammar forces behind the last token; then, where nothing is, what each other source drafts
extend     at the end of the likeliest path: what is forced there, then what a source goes on with, in turns
prune      what is illegal
choose     the likeliest drafts of the whole batch, as many as pay for their verification
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    RequestView,
    SupportsContinuation,
    TreeProducer,
)
from specgrammar.spec.merged.acceptance import Acceptance
from specgrammar.spec.merged.budget import NodeBudget
from specgrammar.spec.merged.trie import DraftTrie, Origin
from specgrammar.trees.tree import DraftTree, HostTree, PrunedDraft

if TYPE_CHECKING:
    from specgrammar.spec.merged.algorithm import MergedAlgorithm

_MOST_TURNS = 6
"""Turns of `extend`: each is one lookup for the batch, and a path is rarely likely behind so many."""
_LEAST_CHANCE = 0.02
"""A path is not extended where fewer than one of fifty gets there: 16 nodes behind it would not add a token."""


class MergedProducer:
    """Proposes one tree per request of what several producers draft."""

    needs: Needs = "grammar"

    def __init__(
        self,
        options: MergedAlgorithm,
        producers: Sequence[tuple[str, TreeProducer]],
        context: ProducerContext,
    ) -> None:
        """Take over the producers.

        Args:
            options: the algorithm.
            producers: with their names.
            context: the engine's.
        """
        self._options = options
        self._names = tuple(name for name, _ in producers)
        self._producers = [producer for _, producer in producers]
        self._device = context.device
        self._acceptance = Acceptance()
        self._budget = NodeBudget(context.agree) if options.budget == "auto" else None
        self._verified: dict[str, DraftTrie] = {}
        self._pruned: list[PrunedDraft] = []  # of this step
        self._drafting_s: list[float] = []  # of this step, by source

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """One tree per request, see `TreeProducer`."""
        if self._budget is not None:
            self._budget.begin([view.request_id for view in batch.requests])
        self._pruned, self._drafting_s = [], [0.0] * len(self._names)
        tries = [DraftTrie(view.tokens[-1]) for view in batch.requests]
        self._draft(batch, tries)
        self._extend(batch.requests, tries)
        legal = [_legal_nodes(view, trie) for view, trie in zip(batch.requests, tries, strict=True)]
        verified = []
        for b, (view, chosen) in enumerate(zip(batch.requests, self._choose(tries, legal), strict=True)):
            self._pruned += _left_out(b, tries[b], set(legal[b]), chosen)
            verified.append(tries[b].kept(sorted(chosen)))
            self._verified[view.request_id] = verified[-1]
        return self._tree(batch.step, verified)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Learn how often which drafts are taken, and let the sources learn."""
        for commit in commits:
            trie = self._verified.pop(commit.request_id, None)
            if trie is not None:
                self._acceptance.learn(trie, commit.tokens)
        for producer in self._producers:
            producer.observe(commits)

    def _draft(self, batch: DecodeBatch, tries: Sequence[DraftTrie]) -> None:
        """What the sources draft from the roots.

        One that cannot go on behind other drafts is asked only where nothing is drafted yet.
        """
        for source, producer in enumerate(self._producers):
            goes_on = isinstance(producer, SupportsContinuation)
            asked = [b for b, trie in enumerate(tries) if goes_on or len(trie) == 1]
            if not asked:
                continue
            views = tuple(batch.requests[b] for b in asked)
            begin_s = time.perf_counter()
            drafted = producer.propose(replace(batch, requests=views))
            host = self._on_host(drafted)
            self._drafting_s[source] += time.perf_counter() - begin_s
            parents, bounds = host.parents().tolist(), host.cu_nodes.tolist()
            tokens = host.draft_tokens.tolist()
            scores = None if drafted.score is None else drafted.score.tolist()
            for index, b in enumerate(asked):
                begin, end = bounds[index], bounds[index + 1]
                _add_tree(
                    tries[b],
                    tokens[begin:end],
                    parents[begin:end],
                    None if scores is None else scores[begin:end],
                    source,
                    self._acceptance,
                )

    def _extend(self, views: Sequence[RequestView], tries: Sequence[DraftTrie]) -> None:
        """Go on at the end of each request's likeliest path, while a source knows how."""
        going = list(range(len(tries)))
        for _ in range(_MOST_TURNS):
            if not going:
                return
            grown: set[int] = set()
            for source, producer in enumerate(self._producers):
                if not isinstance(producer, SupportsContinuation):
                    continue
                ends = {b: tries[b].likeliest_leaf() for b in going if b not in grown}
                ends = {b: leaf for b, leaf in ends.items() if self._may_go_on(views[b], tries[b], leaf)}
                paths = [tries[b].path(leaf) for b, leaf in ends.items()]
                begin_s = time.perf_counter()
                chains = producer.continue_behind(
                    [views[b] for b in ends], paths, self._options.num_draft_tokens
                )
                self._drafting_s[source] += time.perf_counter() - begin_s
                for (b, leaf), path, chain in zip(ends.items(), paths, chains, strict=True):
                    legal = _legal_part(views[b], path, chain)
                    self._pruned += [
                        PrunedDraft(b, (*path, *chain[:end]), source, "illegal")
                        for end in range(len(legal) + 1, len(chain) + 1)
                    ]
                    if legal:
                        grown.add(b)
                        room = self._room(views[b], tries[b], leaf)
                        _add_chain(
                            tries[b], leaf, legal[:room], len(legal) == len(chain), source, self._acceptance
                        )
            going = sorted(grown)

    def _room(self, view: RequestView, trie: DraftTrie, leaf: int) -> int:
        """How many drafts a path may go on with."""
        return min(self._options.num_draft_tokens, view.max_draft_tokens) - trie.depth(leaf)

    def _may_go_on(self, view: RequestView, trie: DraftTrie, leaf: int) -> bool:
        return self._room(view, trie, leaf) > 0 and trie.chances[leaf] >= _LEAST_CHANCE

    def _choose(self, tries: Sequence[DraftTrie], legal: Sequence[list[int]]) -> list[set[int]]:
        """The likeliest drafts of the batch; a node's parent is at least as likely, and comes first."""
        most = self._options.num_draft_tokens
        ranked: list[tuple[float, int, int]] = []
        for b, (trie, nodes) in enumerate(zip(tries, legal, strict=True)):
            best = sorted((-trie.chances[node], b, node) for node in nodes)
            ranked += best[:most]
        ranked.sort()
        number = len(ranked)
        if self._options.budget != "auto":
            number = self._options.budget * len(tries)
        elif self._budget is not None and ranked:
            number = self._budget.choose([-chance for chance, _, _ in ranked], len(tries))
        chosen: list[set[int]] = [set() for _ in tries]
        for _, b, node in ranked[:number]:
            chosen[b].add(node)
        return chosen

    def _tree(self, step: int, tries: Sequence[DraftTrie]) -> DraftTree:
        cu_nodes = np.cumsum([0, *map(len, tries)])
        tokens = [token for trie in tries for token in trie.tokens]
        parents = [parent for trie in tries for parent in trie.parents]
        origins = [max(origin.source, 0) for trie in tries for origin in trie.origins]
        host = HostTree.from_parents(cu_nodes, np.array(tokens, np.int64), np.array(parents, np.int64))
        tree = DraftTree.from_host(step, host, source=np.array(origins, np.int16), sources=self._names)
        return replace(tree, pruned=tuple(self._pruned), drafting_s=tuple(self._drafting_s))

    def _on_host(self, tree: DraftTree) -> HostTree:
        """A source's tree; waits where a device makes it."""
        if tree.host is not None:
            return tree.host
        from specgrammar.grammar.staging import staging_for

        chains = tree.device.retrieve_next_token is None
        return staging_for("chain" if chains else "tree", self._device).stage(tree).resolve()


def _add_tree(
    trie: DraftTrie,
    tokens: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float] | None,
    source: int,
    acceptance: Acceptance,
) -> None:
    """Add a source's tree: its padding is left out."""
    number = {0: 0}
    ranks: dict[int, int] = {}
    for node in range(1, len(tokens)):
        parent = parents[node]
        if tokens[node] < 0 or parent not in number:
            continue
        rank = ranks[parent] = ranks.get(parent, -1) + 1
        above = number[parent]
        kind = min(trie.depth(above), 7) * 4 + min(rank, 3) if scores is None else 100 + int(8 * scores[node])
        origin = Origin(source, kind)
        number[node] = trie.add(above, tokens[node], acceptance.rate(origin), origin)


def _add_chain(
    trie: DraftTrie, node: int, chain: Sequence[int], is_whole: bool, source: int, acceptance: Acceptance
) -> None:
    """Add a chain behind a node; its last token may be one that the target would spell longer."""
    for index, token in enumerate(chain):
        is_last = is_whole and index == len(chain) - 1
        origin = Origin(source, 200 + min(index, 15) * 2 + is_last)
        node = trie.add(node, token, acceptance.rate(origin), origin)


def _legal_part(view: RequestView, path: Sequence[int], chain: Sequence[int]) -> Sequence[int]:
    if view.grammar is None or not chain:
        return chain
    return chain[: max(0, view.grammar.validate([*path, *chain]) - len(path))]


def _legal_nodes(view: RequestView, trie: DraftTrie) -> list[int]:
    """The drafts that the grammar allows, by the paths to the leaves."""
    if view.grammar is None:
        return list(range(1, len(trie)))
    legal: set[int] = set()
    for leaf in trie.leaves():
        path = trie.path(leaf)
        num_legal = view.grammar.validate(path)
        node = leaf
        for depth in range(len(path), 0, -1):
            if depth <= num_legal:
                legal.add(node)
            node = trie.parents[node]
    return sorted(legal)


def _left_out(request: int, trie: DraftTrie, legal: set[int], chosen: set[int]) -> list[PrunedDraft]:
    """The drafts that were not chosen."""
    paths: list[tuple[int, ...]] = [()]
    left_out: list[PrunedDraft] = []
    for node in range(1, len(trie)):
        paths.append((*paths[trie.parents[node]], trie.tokens[node]))
        if node not in chosen:
            why: Literal["illegal", "budget"] = "budget" if node in legal else "illegal"
            left_out.append(PrunedDraft(request, paths[node], trie.origins[node].source, why))
    return left_out
