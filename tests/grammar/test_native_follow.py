"""Grammars moved along a target's draws by native code, against the same moves one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.draws import Draws
from specgrammar.grammar.native_follow import follow_natively
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.grammar.following import A, B, Gone, called_back, draws, draws_of, follow, one_by_one
from tests.grammar.test_build import THREE_THREADS, toy_trees
from tests.toys import matcher, row_of


@given(toy_trees(), st.sampled_from(GRAMMARS), st.integers(0, 2**31), st.sampled_from([None, THREE_THREADS]))
def test_it_goes_where_moves_one_by_one_go(
    tree: HostTree, spec: GrammarSpec, seed: int, workers: FillWorkers | None
) -> None:
    sessions = [
        GrammarSession(VOCABULARY, matcher("xgrammar", spec) if request % 2 else called_back(spec))
        for request in range(tree.bs)
    ]
    drawn = draws_of(tree.num_nodes, seed)
    followed = follow(sessions, tree, drawn, workers)
    for request, session in enumerate(sessions):
        mover = matcher("xgrammar", spec)
        expected = one_by_one(mover, tree, request, drawn)
        assert followed[request] == expected
        assert session.cursor is not None
        assert row_of(session.cursor.matcher) == row_of(mover)
        session.commit([token for token in expected.tokens if token >= 0])  # finds the moves made
        assert session.error is None
        if STOP in expected.tokens:
            assert session.finish == "stop"
        else:
            assert row_of(session.cursor.matcher) == row_of(mover)


@pytest.mark.parametrize("num_kept", [0, 1, 2])
def test_moves_that_are_not_kept_are_taken_back(num_kept: int) -> None:
    spec = GrammarSpec.choice(["abab"])
    session, expected = (GrammarSession(VOCABULARY, matcher("xgrammar", spec)) for _ in range(2))
    assert session.cursor is not None
    assert expected.cursor is not None
    a, b = VOCABULARY.tokens.index(b"a"), VOCABULARY.tokens.index(b"b")
    tree = HostTree.from_chains([[0, a, b]])
    drawn = Draws(np.array([[a], [b], [a]], np.int32), np.ones(3, np.int32))
    assert follow([session], tree, drawn) == [Gone([0, 1, 2], [a, b, a], -1)]
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
    sessions = [
        GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))),
        GrammarSession(VOCABULARY, matcher("xgrammar", spec)),
    ]
    followed = follow(sessions, HostTree.roots([0, 0]), draws(12, 2, 12, 3))  # 12 is illegal
    assert followed == [Gone([], [], -1), Gone([1], [3], -1)]
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
    sessions = [
        GrammarSession(VOCABULARY, called_back(spec)),
        GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))),
        GrammarSession(VOCABULARY, called_back(spec)),
    ]
    followed = follow(sessions, HostTree.roots([0, 0, 0]), draws(3, 3))
    assert followed == [Gone([node], [3], -1) for node in range(3)]
    for session in sessions:
        session.commit([3])  # finds the move made
    message = "the grammar backend raised ZeroDivisionError: planted behind [3]"
    assert [str(session.error) for session in sessions] == ["None", message, "None"]


def empty_rows(num_rows: int = 1) -> MaskRows:
    return MaskRows(np.zeros((num_rows, VOCABULARY.num_words), np.int32), 3, np.zeros(num_rows, np.int32))


ASKED: dict[str, Callable[[GrammarSession], object]] = {
    "follow": lambda session: session.follow([B]),
    "follow_first": lambda session: session.follow_first([3, B]),
    "fill_ahead": lambda session: session.fill_ahead(empty_rows(), 0),
    "validate": lambda session: session.validate([B]),
    "forced_text": lambda session: session.forced_text(),
    "fill": lambda session: session.fill(HostTree.roots([0]), empty_rows().bitmask),
    "walk": lambda session: session.walk(RequestNodes.of(HostTree.roots([0]))[0], empty_rows()),
    "native_calls": lambda session: session.native_calls(),
    "matcher_moved": lambda session: session.matcher_moved(),
    "advance": lambda session: session.advance(),
    "being followed again": lambda session: follow([session], HostTree.roots([0]), draws(B, 1)),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_matcher_is_told_its_moves_before_it_is_asked_again(name: str) -> None:
    class Told(CalledBack):
        tokens: ClassVar[list[int]] = []

        def native_moved(self, tokens: Sequence[int]) -> None:
            Told.tokens.extend(tokens)
            super().native_moved(tokens)

    class Backend(ReferenceBackend):
        matcher_class = Told

    spec, backend = GrammarSpec.choice(["abb"]), Backend(VOCABULARY)
    session = GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec)))
    follow([session], HostTree.roots([0]), draws(3, 1))
    assert Told.tokens == []
    ASKED[name](session)
    assert Told.tokens == [3]
    session.advance()  # nothing was kept
    assert session.error is None
    assert session.cursor is not None
    assert row_of(session.cursor.matcher) == row_of(matcher("xgrammar", spec))


def test_a_matcher_that_did_not_move_is_told_nothing_and_one_that_failed_is_not_filled() -> None:
    class Backend(ReferenceBackend):
        matcher_class = ForgetsMoves

    backend, spec = Backend(VOCABULARY), GrammarSpec.choice(["ab"])
    refused, moved = (GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec))) for _ in range(2))
    follow([refused], HostTree.roots([0]), draws(12, 1))
    refused.advance()
    assert refused.error is None
    follow([moved], HostTree.roots([0]), draws(A, 1))
    rows = empty_rows()
    moved.fill_ahead(rows, 0)
    assert moved.finish == "error"
    assert (rows.num_rows, rows.status[0]) == (0, NodeStatus.PADDING)


@pytest.mark.parametrize("shape", [(2, VOCABULARY.num_words), (3, VOCABULARY.num_words + 1)])
def test_rows_that_do_not_hold_what_may_come_are_not_written(shape: tuple[int, int]) -> None:
    sessions = [GrammarSession(VOCABULARY, called_back(GrammarSpec.choice(["ab"]))) for _ in range(3)]
    tree, rows = HostTree.roots([0] * 3), MaskRows(np.full(shape, 7, np.int32), 3, np.zeros(shape[0], np.int32))
    paths, status = Paths(tree), np.zeros(3, np.int8)
    if shape[0] < 3:
        with pytest.raises(MatcherError, match="the bitmask is"):
            follow_natively(sessions, tree, draws(12, 3), paths, status, lambda: rows)
    else:
        follow_natively(sessions, tree, draws(12, 3), paths, status, lambda: rows)
        assert ["its rows have 1 words" in str(session.error) for session in sessions] == [True] * 3
    assert (rows.bitmask == 7).all()


def test_a_matcher_that_comes_twice_is_moved_once() -> None:
    session = GrammarSession(VOCABULARY, called_back(GrammarSpec.choice(["ab"])))
    followed = follow([session, session], HostTree.roots([0, 0]), draws(3, 2))
    assert followed == [Gone([0], [3], -1), Gone([], [], 1)]


def test_requests_that_native_code_cannot_move_are_left() -> None:
    spec = GrammarSpec.choice(["ab"])
    over = GrammarSession(VOCABULARY, matcher("xgrammar", spec))
    over.abort()
    backend = ReferenceBackend(VOCABULARY)
    plain = GrammarSession(VOCABULARY, backend.matcher(backend.compile(spec)))
    sessions = [GrammarSession(VOCABULARY), over, plain, None]
    followed = follow(sessions, HostTree.roots([0] * 4), draws(3, 4))
    assert followed == [Gone([], [], node) for node in range(4)]
    assert follow([], HostTree.roots([]), draws(3, 0)) == []


class TooNarrow(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        return self.calls(self._vocabulary.num_words - 1)


@pytest.mark.parametrize(
    ("num_words", "said"), [(None, "those of the step 2"), (1, "those of the step 1, the vocabulary needs 2")]
)
def test_a_matcher_with_rows_of_another_width_ends_its_own_request(num_words: int | None, said: str) -> None:
    """A row of its width would be read behind its end, also where the step's have it as well."""

    class Backend(ReferenceBackend):
        matcher_class = TooNarrow

    backend, spec = Backend(TWO_WORDS), GrammarSpec.choice(["ab"])
    session = GrammarSession(TWO_WORDS, backend.matcher(backend.compile(spec)))
    tree = HostTree.roots([0])
    if num_words is None:
        assert follow([session], tree, draws(12, 1, 39)) == [Gone([], [], -1)]
    else:
        rows = MaskRows(np.zeros((1, num_words), np.int32), 1, np.zeros(1, np.int32))
        paths = Paths(tree)
        follow_natively([session], tree, draws(12, 1, 39), paths, np.zeros(1, np.int8), lambda: rows)
        assert paths.lengths.tolist() == [0]
    assert f"its rows have 1 words, {said}" in str(session.error)
