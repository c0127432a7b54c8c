"""Grammars moved along a target's draws by native code, against the same moves one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.native_follow import Draws, Followed, follow_natively
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec, NodeStatus
from specgrammar.runtime.lazy import open_status
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import GRAMMARS, SPECIAL, STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.grammar.test_build import THREE_THREADS, toy_trees
from tests.toys import matcher, row_of

TOKENS = [0, 1, 2, 3, 0, 1, 2, 4, 12, STOP, SPECIAL, VOCABULARY.vocab_size, -1]


class CalledBackBackend(ReferenceBackend):
    matcher_class = CalledBack


def called_back(spec: GrammarSpec) -> CalledBack:
    backend = CalledBackBackend(VOCABULARY)
    made = backend.matcher(backend.compile(spec))
    assert isinstance(made, CalledBack)
    return made


def draws_of(num_nodes: int, seed: int) -> Draws:
    """Three best tokens of each node, as many of them sure as chance has it."""
    rng = np.random.default_rng(seed)
    best = rng.choice(TOKENS, (num_nodes, 3)).astype(np.int64)
    num_sure = rng.integers(0, 4, num_nodes)
    return Draws(np.where(num_sure > 0, best[:, 0], rng.choice(TOKENS, num_nodes)), best, num_sure)


def one_by_one(
    mover: GrammarMatcher, tree: HostTree, request: int, status: NDArray[np.int8], draws: Draws
) -> tuple[list[int], list[int], int]:
    """What `Followed` says, by the definition; moves the matcher."""
    first = int(tree.cu_nodes[request])
    node, nodes, tokens = first, list[int](), list[int]()
    while True:
        offered = [int(draws.drawn[node]), *draws.best[node, 1 : draws.num_sure[node]].tolist()]
        if offered[0] == STOP or not 0 <= offered[0] < VOCABULARY.vocab_size:
            return nodes, tokens, node
        legal = row_of(mover)
        token = next(
            (t for t in offered if 0 <= t < VOCABULARY.vocab_size and legal[t // 32] >> t % 32 & 1), STOP
        )
        if token == STOP:
            return nodes, tokens, node
        assert mover.accept(token)
        nodes.append(node)
        tokens.append(token)
        child = int(tree.retrieve_next_token[node])
        while child >= 0:
            flat = first + child
            if tree.draft_tokens[flat] == token and status[flat] == NodeStatus.FREE:
                break
            child = int(tree.retrieve_next_sibling[flat])
        if child < 0:
            return nodes, tokens, -1
        node = first + child


@given(toy_trees(), st.sampled_from(GRAMMARS), st.integers(0, 2**31), st.sampled_from([None, THREE_THREADS]))
def test_it_goes_where_moves_one_by_one_go(
    tree: HostTree, spec: GrammarSpec, seed: int, workers: FillWorkers | None
) -> None:
    sessions = {
        request: GrammarSession(VOCABULARY, matcher("xgrammar", spec) if request % 2 else called_back(spec))
        for request in range(tree.bs)
    }
    status = open_status(tree, list(sessions.values()), VOCABULARY)
    draws = draws_of(tree.num_nodes, seed)
    followed = {each.number: each for each in follow_natively(sessions, tree, status, draws, workers)}
    assert followed.keys() == sessions.keys()
    for request, session in sessions.items():
        mover = matcher("xgrammar", spec)
        nodes, tokens, stuck = one_by_one(mover, tree, request, status, draws)
        assert followed[request] == Followed(request, nodes, tokens, stuck)
        assert session.cursor is not None
        assert row_of(session.cursor.matcher) == row_of(mover)
        session.commit(tokens)  # finds the moves made
        assert session.error is None
        assert row_of(session.cursor.matcher) == row_of(mover)


@pytest.mark.parametrize("num_kept", [0, 1, 2])
def test_moves_that_are_not_kept_are_taken_back(num_kept: int) -> None:
    spec = GrammarSpec.choice(["abab"])
    session, expected = (GrammarSession(VOCABULARY, matcher("xgrammar", spec)) for _ in range(2))
    assert session.cursor is not None
    assert expected.cursor is not None
    a, b = VOCABULARY.tokens.index(b"a"), VOCABULARY.tokens.index(b"b")
    tree = HostTree.from_chains([[0, a, b]])
    best = np.array([[a], [b], [a]])
    draws = Draws(best[:, 0].copy(), best, np.ones(3, np.int64))
    (followed,) = follow_natively({0: session}, tree, open_status(tree, [session], VOCABULARY), draws)
    assert followed == Followed(0, [0, 1, 2], [a, b, a], -1)
    session.commit([a, b, a][:num_kept])
    expected.commit([a, b, a][:num_kept])
    assert row_of(session.cursor.matcher) == row_of(expected.cursor.matcher)


class Fails(CalledBack):
    def native_fill(self, row: NDArray[np.int32]) -> None:  # noqa: ARG002
        raise RuntimeError("planted in a fill")


class FailsToMove(CalledBack):
    def native_accept(self, token: int) -> bool:  # noqa: ARG002
        raise RuntimeError("planted in a move")


@pytest.mark.parametrize(
    ("broken", "reason"), [(Fails, "planted in a fill"), (FailsToMove, "planted in a move")]
)
def test_a_matcher_that_fails_ends_its_own_request(broken: type[CalledBack], reason: str) -> None:
    class Backend(ReferenceBackend):
        matcher_class = broken

    spec = GrammarSpec.choice(["ab"])
    backend = Backend(VOCABULARY)
    sessions = {
        0: GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))),
        1: GrammarSession(VOCABULARY, matcher("xgrammar", spec)),
    }
    tree = HostTree.roots([0, 0])
    status = open_status(tree, list(sessions.values()), VOCABULARY)
    best = np.array([[12, 3], [12, 3]])  # 12 is illegal
    followed = follow_natively(sessions, tree, status, Draws(best[:, 0].copy(), best, np.array([2, 2])))
    assert followed == [Followed(0, [], [], -1), Followed(1, [1], [3], -1)]
    assert isinstance(sessions[0].error, MatcherError)
    assert reason in str(sessions[0].error)
    assert sessions[1].error is None


class ForgetsMoves(CalledBack):
    def native_moved(self, tokens: Sequence[int]) -> None:
        raise ZeroDivisionError(f"planted behind {tokens}")


def test_a_matcher_that_does_not_note_its_moves_ends_its_own_request() -> None:
    class Backend(ReferenceBackend):
        matcher_class = ForgetsMoves

    spec = GrammarSpec.choice(["ab"])
    backend = Backend(VOCABULARY)
    sessions = {
        0: GrammarSession(VOCABULARY, called_back(spec)),
        1: GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))),
        2: GrammarSession(VOCABULARY, called_back(spec)),
    }
    tree = HostTree.roots([0, 0, 0])
    status = open_status(tree, list(sessions.values()), VOCABULARY)
    followed = follow_natively(
        sessions, tree, status, Draws(np.full(3, 3), np.full((3, 1), 3), np.ones(3, int))
    )
    assert followed == [Followed(0, [0], [3], -1), Followed(1, [], [], -1), Followed(2, [2], [3], -1)]
    message = "the grammar backend raised ZeroDivisionError: planted behind [3]"
    assert [str(session.error) for session in sessions.values()] == ["None", message, "None"]
    sessions[2].commit([3])  # finds the move made
    assert sessions[2].error is None


def test_a_matcher_that_comes_twice_is_moved_once() -> None:
    session = GrammarSession(VOCABULARY, called_back(GrammarSpec.choice(["ab"])))
    sessions = {0: session, 1: session}
    tree = HostTree.roots([0, 0])
    status = open_status(tree, list(sessions.values()), VOCABULARY)
    draws = Draws(np.full(2, 3), np.full((2, 1), 3), np.ones(2, np.int64))
    assert follow_natively(sessions, tree, status, draws) == [Followed(0, [0], [3], -1)]


def test_requests_that_native_code_cannot_move_are_left() -> None:
    spec = GrammarSpec.choice(["ab"])
    over = GrammarSession(VOCABULARY, matcher("xgrammar", spec))
    over.abort()
    backend = ReferenceBackend(VOCABULARY)
    sessions = {
        0: GrammarSession(VOCABULARY),
        1: over,
        2: GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))),
    }
    tree = HostTree.roots([0, 0, 0])
    status = open_status(tree, list(sessions.values()), VOCABULARY)
    draws = Draws(np.full(3, 3), np.full((3, 1), 3), np.ones(3, np.int64))
    assert follow_natively(sessions, tree, status, draws) == []
    assert follow_natively({}, tree, status, draws) == []
