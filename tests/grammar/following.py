"""Draws, and what becomes of requests that native code moves along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specgrammar.grammar.draws import Draws
from specgrammar.grammar.native_follow import Stuck, follow_natively
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec
from specgrammar.runtime.open_status import open_status
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import SPECIAL, STOP, VOCABULARY
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.toys import row_of

A, B = VOCABULARY.tokens.index(b"a"), VOCABULARY.tokens.index(b"b")
TOKENS = [0, 1, 2, 3, 0, 1, 2, 4, 12, STOP, SPECIAL, VOCABULARY.vocab_size, -1]


class CalledBackBackend(ReferenceBackend):
    matcher_class = CalledBack


def called_back(spec: GrammarSpec) -> CalledBack:
    backend = CalledBackBackend(VOCABULARY)
    made = backend.matcher(backend.compile(spec))
    assert isinstance(made, CalledBack)
    return made


def draws_of(num_nodes: int, seed: int) -> Draws:
    """Three best tokens of each node, as many of them sure as chance has it; ids of four bytes or of two."""
    rng = np.random.default_rng(seed)
    best, num_sure = rng.choice(TOKENS, (num_nodes, 3)), rng.integers(0, 4, num_nodes, np.int32)
    return Draws(best.astype(np.int32) if seed % 2 else best.astype(np.uint16), num_sure)


def draws(token: int, num_nodes: int, *others: int) -> Draws:
    """The same at every node."""
    best = np.array([[token, *others]] * num_nodes, np.int32).reshape(num_nodes, 1 + len(others))
    return Draws(best, np.full(num_nodes, best.shape[1], np.int32))


class Gone(NamedTuple):
    """How far a request's grammar was moved."""

    nodes: list[int]
    tokens: list[int]
    stuck: int
    """-1 where the walk is over."""
    is_refused: bool = False


def follow(
    sessions: Sequence[GrammarSession | None],
    tree: HostTree,
    draws: Draws,
    workers: FillWorkers | None = None,
) -> list[Gone]:
    """What becomes of each request."""
    paths, status = Paths(tree), np.full(tree.num_nodes, -1, np.int8)
    followed = follow_natively(sessions, tree, draws, paths, status, workers=workers)
    stuck = {one.number: one for one in followed.stuck}
    open_ = open_status(tree, VOCABULARY)
    found = []
    for request, (root, length) in enumerate(zip(tree.cu_nodes.tolist(), paths.lengths.tolist(), strict=False)):
        nodes, tokens = (root + paths.nodes[request]).tolist(), paths.tokens[request].tolist()
        assert paths.num_accepted[request] == max(1, length) - 1
        assert nodes[max(1, length) :] == [root - 1] * (tree.width - max(1, length))
        assert paths.bonus[request] == (tokens[length - 1] if length else -1)
        own, is_other = tree.request_slice(request), request in followed.others
        assert status[own].tolist() == ([-1] * (own.stop - own.start) if is_other else open_[own].tolist())
        at = stuck.get(request, Stuck(request, root if is_other else -1, False))
        assert not at.has_row
        found.append(Gone(nodes[:length], tokens[:length], at.node, at.is_refused))
    return found


def one_by_one(mover: GrammarMatcher, tree: HostTree, request: int, draws: Draws) -> Gone:
    """What becomes of a request by the definition; moves the matcher."""
    first = int(tree.cu_nodes[request])
    node, nodes, tokens = first, list[int](), list[int]()
    while True:
        drawn = draws.drawn(node)
        if drawn < 0:
            return Gone(nodes, tokens, node)
        offered = [drawn, *draws.next_best(node)]
        legal = row_of(mover)
        allowed = [t for t in offered if 0 <= t < VOCABULARY.vocab_size and legal[t // 32] >> t % 32 & 1]
        if not allowed:
            return Gone(nodes, tokens, node, is_refused=True)
        nodes.append(node)
        tokens.append(allowed[0])
        if allowed[0] != STOP:
            assert mover.accept(allowed[0])
        child = int(tree.retrieve_next_token[node])
        while child >= 0 and tree.draft_tokens[first + child] != allowed[0]:
            child = int(tree.retrieve_next_sibling[first + child])
        if child >= 0 and allowed[0] == STOP:
            return Gone([*nodes, first + child], [*tokens, -1], -1)
        if child < 0 or allowed[0] == STOP:
            return Gone(nodes, tokens, -1)
        node = first + child
