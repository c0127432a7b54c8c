"""Matchers moved by native code: walks over their trees, and moves of their own, against fresh ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError
from specgrammar.grammar.native_walk import walk_natively
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import SupportsNativeCalls
from specgrammar.protocols.grammar import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    NodeStatus,
    Vocabulary,
)
from specgrammar.testing.checks.base import Draw, Story, expect, same
from specgrammar.testing.checks.calls_table import CallsTable
from specgrammar.testing.checks.trees import Path, Places, bits, some_tree
from specgrammar.testing.checks.walking import STALE, expect_replay, undoable, walk
from specgrammar.testing.toys import TEXTS, TWO_STOPS, text_of, texts_of
from specgrammar.trees.tree import HostTree

TWO_WORDS = Vocabulary((*TWO_STOPS.tokens, *reversed(TEXTS)), TWO_STOPS.stop_ids, TWO_STOPS.special_ids)
"""40 ids, the last ones spelled as the first, from 39 down: rows of two words, with legal ids in both."""


class BothThreads(FillWorkers):
    """Two threads, always."""

    def __init__(self) -> None:
        """Start the pool."""
        super().__init__(2)

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:  # noqa: ARG002
        """All that there are."""
        return self.max_threads


class _Request(NamedTuple):
    """One request of a walk."""

    matcher: GrammarMatcher
    accepted: list[int]
    places: Places
    tree: HostTree
    paths: list[Path | None]
    """The path to each node, None for padding."""


def play_native_walk(
    backend: GrammarBackend, grammar: CompiledGrammar, threads: BothThreads, draw: Draw, story: Story
) -> bool:
    """Walk a tree, perhaps beside that of a fork; raise ConformanceError where a node is not as one by one.

    Returns whether there was something to walk.
    """
    matcher = backend.matcher(grammar)
    accepted = walk(matcher, draw, story, most=3, vocabulary=TWO_WORDS)
    forked = matcher.fork() if draw(st.booleans()) else None
    requests = [_some_request(backend, grammar, matcher, accepted, draw, story)]
    if forked is not None:
        story.tell("of a fork:")
        further = accepted + walk(forked, draw, story, most=2, vocabulary=TWO_WORDS)
        requests.append(_some_request(backend, grammar, forked, further, draw, story))
    walked = [request for request in requests if request is not None]
    if not walked:
        return False
    is_dense = draw(st.booleans())
    beside = ", on two threads" if len(walked) > 1 else ""
    story.tell(f"walk natively, {'dense' if is_dense else 'compact'}{beside}")
    _expect_walk(walked, threads, is_dense=is_dense)
    for request in walked:
        expect_replay(request.matcher, backend, grammar, request.accepted, "after a native walk", TWO_WORDS)
    request = walked[0]
    more = request.accepted + walk(request.matcher, draw, story, most=2, vocabulary=TWO_WORDS)
    expect_replay(request.matcher, backend, grammar, more, "after a native walk and more tokens", TWO_WORDS)
    return True


def play_native_moves(backend: GrammarBackend, grammar: CompiledGrammar, draw: Draw, story: Story) -> bool:
    """Move a matcher by the functions of its table; raise ConformanceError where they are not as `accept`.

    Returns whether there were any.
    """
    matcher = backend.matcher(grammar)
    assert isinstance(matcher, SupportsNativeCalls)
    accepted = walk(matcher, draw, story, most=3, vocabulary=TWO_STOPS)
    native = matcher.native_calls()
    if native is None:
        return False
    table, path = CallsTable.from_address(native.calls), list[int]()
    places = Places(backend, grammar, accepted, TWO_STOPS)
    texts = [token for token in range(TWO_STOPS.vocab_size) if token not in TWO_STOPS.stop_ids]
    for _ in range(draw(st.integers(1, 4))):
        legal = [token for token in places.legal(path) if token in texts]
        wants_legal = draw(st.booleans())
        token = draw(st.sampled_from(legal if legal and wants_legal else texts))
        name = text_of(token, TWO_STOPS)
        story.tell(f"accept {name} natively")
        same(f"the native accept of {name}", table.accept(*native[:2], token), int(token in legal))
        path += [token] if token in legal else []
    story.tell(f"native_moved({texts_of(path, TWO_STOPS)})")
    matcher.native_moved(path)
    expect_replay(matcher, backend, grammar, accepted + path, "after native moves", TWO_STOPS)
    same("native_calls in another place", matcher.native_calls(), native)
    num_tokens = draw(st.integers(0, undoable(backend, len(path))))
    story.tell(f"rollback({num_tokens})")
    matcher.rollback(num_tokens)
    kept = (accepted + path)[: len(accepted) + len(path) - num_tokens]
    expect_replay(matcher, backend, grammar, kept, "after native moves and a rollback", TWO_STOPS)
    return True


def _some_request(
    backend: GrammarBackend,
    grammar: CompiledGrammar,
    matcher: GrammarMatcher,
    accepted: list[int],
    draw: Draw,
    story: Story,
) -> _Request | None:
    """A tree for a matcher; None where native code does not move it."""
    assert isinstance(matcher, SupportsNativeCalls)
    story.tell("native_calls")
    native = matcher.native_calls()
    expect(native is None or not matcher.finished, "native_calls behind a stop token are not None")
    if native is None:
        return None
    places = Places(backend, grammar, accepted, TWO_WORDS)
    tree, paths = some_tree(draw, places, undoable(backend, 6))
    story.tell("nodes")
    for node, path in enumerate(paths):
        story.tell(f"  {node}: " + ("padding" if path is None else f"behind {texts_of(path, TWO_WORDS)}"))
    return _Request(matcher, accepted, places, tree, paths)


def _expect_walk(requests: Sequence[_Request], threads: BothThreads, *, is_dense: bool) -> None:
    """Raise ConformanceError unless each node has the row and the status that its path has one by one."""
    tree = _batch([request.tree for request in requests])
    num_nodes = len(tree.draft_tokens)
    memory = np.full((num_nodes + 2, TWO_WORDS.num_words), STALE, np.int32)
    bitmask = memory[1:-1]
    if is_dense:
        bitmask[:] = -1
    rows = MaskRows(bitmask, num_nodes, None if is_dense else np.full(num_nodes, -1, np.int32))
    sessions = [GrammarSession(TWO_WORDS, request.matcher) for request in requests]
    walk_natively(sessions, tree, rows, threads)
    for session, request, first in zip(sessions, requests, tree.cu_nodes.tolist(), strict=False):
        is_stuck, error = not request.places.legal([]), session.error
        expect(is_stuck or error is None, f"the native walk failed: {error}")
        expect(
            not is_stuck or isinstance(error, DeadEndError),
            f"nothing is legal behind the root, and of the native walk comes {error or 'no error'}",
        )
        for node, path in enumerate(request.paths):
            status = NodeStatus.PADDING if is_stuck else request.places.status(path)
            same(
                f"the status of node {node} of a native walk",
                NodeStatus(rows.status[first + node]).name,
                status.name,
            )
            legal = request.places.legal(path or []) if status == NodeStatus.LIVE else None
            _expect_row(rows, first + node, node, legal)
    # Behind the last row there may be what threads filled and moved to where one had reserved too many.
    behind = [] if is_dense else [row for row in bitmask[rows.num_rows :] if (row != STALE).any()]
    kept = {row.tobytes() for row in bitmask[: rows.num_rows]}
    is_kept = (memory[[0, -1]] == STALE).all() and all(row.tobytes() in kept for row in behind)
    expect(is_kept, "the native walk wrote to rows that it was not given")


def _expect_row(rows: MaskRows, index: int, node: int, legal: list[int] | None) -> None:
    """Raise ConformanceError unless a node (`index` of the batch) has the row of `legal`, None for no row."""
    owned = [index] if rows.dense else np.flatnonzero(rows.owners[: rows.num_rows] == index).tolist()
    if legal is None:
        has_none = (rows.bitmask[index] == -1).all() if rows.dense else not owned
        expect(has_none, f"a native walk fills a row for node {node}, which is not live")
        return
    same(f"the number of rows of node {node} of a native walk", len(owned), 1)
    found = bits(rows.bitmask[owned[0]])
    expect(
        found == legal,
        f"a native walk gives node {node} the tokens {texts_of(found, TWO_WORDS)}; "
        f"one by one they are {texts_of(legal, TWO_WORDS)}",
    )


def _batch(trees: Sequence[HostTree]) -> HostTree:
    """The trees of one request each as a batch."""
    cu_nodes = np.array([0, *accumulate(len(tree.draft_tokens) for tree in trees)])
    arrays = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")
    return HostTree(cu_nodes, *(np.concatenate([getattr(tree, name) for tree in trees]) for name in arrays))
