"""Scenes: a batch of requests in the middle of real documents, with draft trees as real drafters make them.

    ngram  the document's own continuation and what follows the same token elsewhere in the corpus: few, long
           branches, wrong ones mostly from some node on
    eagle  a beam: every node has several plausible successors, the most probable ones are expanded
    chain  one continuation, right up to some node

How many nodes are legal follows from the documents; the benchmark reports it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.documents import Document
from specgrammar.trees.tree import HostTree

KINDS = ("ngram", "eagle", "chain")

_P_RIGHT = 0.75
"""How often a drafter is right about the next token: of EAGLE's and ngram's published acceptance rates."""
_TOP_K = 4
_BRANCH = 12
"""Longest branch that an ngram drafter copies."""


@dataclass(frozen=True)
class Request:
    """A request that has committed `document.tokens[:position]`; `position >= 1`."""

    document: Document
    position: int

    @property
    def committed(self) -> tuple[int, ...]:
        """What the grammar has moved over; the last one is the root of the tree."""
        return self.document.tokens[: self.position]


@dataclass(frozen=True)
class Scene:
    """One step of a batch: every request has a tree of `num_nodes` nodes."""

    kind: str
    num_nodes: int
    requests: tuple[Request, ...]
    tree: HostTree

    @property
    def bs(self) -> int:
        """Number of requests."""
        return len(self.requests)


class Corpus:
    """Documents, and what follows in them: behind two tokens, or behind one where two were not seen."""

    def __init__(self, documents: Sequence[Document], stop_id: int) -> None:
        """Index the documents, each with the stop token behind it."""
        self.documents = documents
        self.texts = [(*document.tokens, stop_id) for document in documents]
        self._places: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for index, text in enumerate(self.texts):
            for position in range(1, len(text)):
                for context in (text[position - 1 : position], text[max(position - 2, 0) : position]):
                    self._places[context].append((index, position))
                    counts[context][text[position]] += 1
        self._likely = {key: [token for token, _ in count.most_common(8)] for key, count in counts.items()}
        self.frequent = [token for token, _ in Counter(t for text in self.texts for t in text).most_common(64)]

    def likely(self, context: tuple[int, ...]) -> list[int]:
        """What follows most often, behind the two tokens first."""
        return [*self._likely.get(context, ()), *self._likely.get(context[1:], ())]

    def continuation(self, context: tuple[int, ...], rng: random.Random, length: int) -> tuple[int, ...]:
        """What follows the context somewhere; what stands anywhere where it was never seen."""
        places = self._places.get(context) or self._places.get(context[1:]) or self._places[self.frequent[0],]
        index, position = rng.choice(places)
        return self.texts[index][position : position + length]

    def make_scene(self, kind: str, bs: int, num_nodes: int, seed: int = 0) -> Scene:
        """A batch of one kind; the same arguments give the same scene."""
        rng = random.Random(f"{kind} {bs} {num_nodes} {seed}")
        requests, tokens, parents = [], [], []
        for _ in range(bs):
            index = rng.randrange(len(self.documents))
            position = rng.randrange(1, len(self.documents[index].tokens))
            requests.append(Request(self.documents[index], position))
            text = self.texts[index]
            tree, truth = _Trie(text[:position], num_nodes), text[position:]
            _DRAFTERS[kind](self, tree, truth, rng)
            tokens += tree.tokens
            parents += tree.parents
        cu_nodes = np.arange(bs + 1, dtype=np.int64) * num_nodes
        tree_of_batch = HostTree.from_parents(cu_nodes, np.array(tokens), np.array(parents))
        return Scene(kind, num_nodes, tuple(requests), tree_of_batch)


class _Trie:
    """A tree under construction: nodes in the order in which they are added, no two equal siblings."""

    def __init__(self, committed: Sequence[int], num_nodes: int) -> None:
        self._before = committed[-2] if len(committed) > 1 else -1
        self.tokens = [committed[-1]]
        self.parents = [-1]
        self.num_nodes = num_nodes
        self._children: dict[tuple[int, int], int] = {}

    @property
    def full(self) -> bool:
        return len(self.tokens) == self.num_nodes

    def context(self, node: int) -> tuple[int, int]:
        """The node's token and the one before it."""
        return (self.tokens[self.parents[node]] if node else self._before, self.tokens[node])

    def child(self, parent: int, token: int) -> int:
        """The child with this token, added if there is room; -1 where there is none."""
        node = self._children.get((parent, token), -1)
        if node < 0 and not self.full:
            node = self._children[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def insert(self, parent: int, branch: Sequence[int]) -> int:
        """Add a branch; returns its last node, or `parent` for an empty one."""
        for token in branch:
            node = self.child(parent, token)
            if node < 0:
                break
            parent = node
        return parent


def _ngram(corpus: Corpus, tree: _Trie, truth: Sequence[int], rng: random.Random) -> None:
    if rng.random() < _P_RIGHT:
        tree.insert(0, truth[: rng.randint(1, min(_BRANCH, tree.num_nodes // 2))])
    while not tree.full:
        # Mostly from the root, where a drafter looks up; the rest fork within a branch.
        start = 0 if rng.random() < 0.5 else rng.randrange(len(tree.tokens))
        tree.insert(start, corpus.continuation(tree.context(start), rng, rng.randint(1, _BRANCH)))
        if rng.random() < 0.2:  # the corpus may have nothing new behind these nodes
            tree.child(start, rng.choice(corpus.frequent))


def _eagle(corpus: Corpus, tree: _Trie, truth: Sequence[int], rng: random.Random) -> None:
    # A queue entry: minus the log of the joint probability, a tie-break, parent, token, depth if right so far.
    queue: list[tuple[float, int, int, int, int]] = []
    num_pushed = 0

    def expand(node: int, cost: float, depth: int) -> None:
        nonlocal num_pushed
        likely = [token for token in corpus.likely(tree.context(node)) if rng.random() < 0.8]
        candidates = list(dict.fromkeys([*likely, *rng.choices(corpus.frequent, k=_TOP_K)]))
        if 0 <= depth < len(truth):
            candidates = [token for token in candidates if token != truth[depth]]
            candidates.insert(0 if rng.random() < _P_RIGHT else rng.randrange(1, _TOP_K), truth[depth])
        for rank, token in enumerate(candidates[:_TOP_K]):
            right = depth + 1 if 0 <= depth < len(truth) and token == truth[depth] else -1
            probability = rng.uniform(0.5, 0.9) * 0.4**rank
            heapq.heappush(queue, (cost - math.log(probability), num_pushed, node, token, right))
            num_pushed += 1

    expand(0, 0.0, 0)
    while not tree.full:
        cost, _, parent, token, depth = heapq.heappop(queue)
        expand(tree.child(parent, token), cost, depth)


def _chain(corpus: Corpus, tree: _Trie, truth: Sequence[int], rng: random.Random) -> None:
    last = tree.insert(0, truth[: rng.randrange(tree.num_nodes)])
    while not tree.full:
        last = tree.insert(last, corpus.continuation(tree.context(last), rng, _BRANCH))


_DRAFTERS: dict[str, Callable[[Corpus, _Trie, Sequence[int], random.Random], None]] = {
    "ngram": _ngram,
    "eagle": _eagle,
    "chain": _chain,
}
