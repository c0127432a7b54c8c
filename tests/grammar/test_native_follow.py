"""Grammars moved along a target's draws by native code, against the same moves one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.draws import Draws, short_id_dtype
from specgrammar.grammar.native_follow import Stuck, follow_natively
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec, NodeStatus
from specgrammar.runtime.open_status import open_status
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import GRAMMARS, SPECIAL, STOP, VOCABULARY
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.grammar.test_build import THREE_THREADS, toy_trees
from tests.toys import matcher, row_of

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


class CountsFills(CalledBack):
    num_fills = 0

    def native_fill(self, row: NDArray[np.int32]) -> None:
        self.num_fills += 1
        super().native_fill(row)


@pytest.mark.parametrize(
    ("drawn", "num_fills", "is_refused"),
    [
        ((A,), 0, False),
        ((12, A), 0, False),
        ((12, 12, A), 1, False),
        ((12,), 0, True),
        ((12, STOP, A), 1, False),
    ],
)
def test_one_more_draw_is_tried_before_a_row_is_filled(
    drawn: tuple[int, ...], num_fills: int, is_refused: bool
) -> None:
    class Backend(ReferenceBackend):
        matcher_class = CountsFills

    backend = Backend(VOCABULARY)
    mover = backend.matcher(backend.compile(GrammarSpec.choice(["ab"])))
    assert isinstance(mover, CountsFills)
    (gone,) = follow([GrammarSession(VOCABULARY, mover)], HostTree.roots([0]), draws(drawn[0], 1, *drawn[1:]))
    assert gone == (Gone([], [], 0, True) if is_refused else Gone([0], [A], -1))
    assert mover.num_fills == num_fills


def test_no_token_and_the_largest_id_are_told_apart() -> None:
    largest = 0xFFFF
    short = Draws(np.array([[largest, 1, 2]], np.uint16), np.array([3], np.int32))
    assert (short.drawn(0), short.next_best(0)) == (-1, [1, 2])
    assert Draws(np.array([[largest]], np.int32), np.array([0], np.int32)).drawn(0) == largest
    assert (short_id_dtype(largest), short_id_dtype(largest + 1)) == (torch.uint16, torch.int32)


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


@pytest.mark.parametrize("others", [(), (12, 13), (12, 13, -1)])
def test_it_says_where_nothing_that_is_known_is_legal(others: tuple[int, ...]) -> None:
    session = GrammarSession(VOCABULARY, matcher("xgrammar", GrammarSpec.regex("a?")))
    assert follow([session], HostTree.roots([0]), draws(12, 1, *others)) == [Gone([], [], 0, True)]


@pytest.mark.parametrize(("drawn", "others"), [(STOP, ()), (12, (13, STOP)), (VOCABULARY.vocab_size, (STOP,))])
def test_a_stop_token_ends_a_path_where_it_is_legal(drawn: int, others: tuple[int, ...]) -> None:
    """Also behind a node that carries it; the matcher is not moved over it."""
    tree = HostTree.from_chains([[0], [0, STOP, 3], [0]])
    specs = [GrammarSpec.regex("a?"), GrammarSpec.regex("a?"), GrammarSpec.regex("a")]
    sessions = [GrammarSession(VOCABULARY, matcher("xgrammar", spec)) for spec in specs]
    followed = follow(sessions, tree, draws(drawn, 5, *others))
    assert followed == [Gone([0], [STOP], -1), Gone([1, 2], [STOP, -1], -1), Gone([], [], 4, True)]
    for session in sessions[:2]:
        session.commit([STOP])
        assert (session.finish, session.error) == ("stop", None)


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


def test_what_is_refused_gets_a_row_for_another_draw() -> None:
    """Compact rows, handed out as walks come; none where nothing is legal, or where a draw goes on."""
    spec = GrammarSpec.regex("a|bc")
    sessions = [GrammarSession(VOCABULARY, matcher("xgrammar", spec)) for _ in range(4)]
    tree = HostTree.from_chains([[0], [0, 0], [0], [0]])
    best = np.array([[12], [VOCABULARY.tokens.index(b"b")], [12], [-1], [12]], np.int32)
    rows = MaskRows(np.full((4, VOCABULARY.num_words), -1, np.int32), tree.num_nodes, np.full(4, -1, np.int32))
    paths = Paths(tree)
    followed = follow_natively(
        sessions, tree, Draws(best, np.ones(5, np.int32)), paths, np.zeros(5, np.int8), lambda: rows
    )
    assert followed.num_rows == rows.num_rows == 2
    assert sorted(rows.owners[:2].tolist()) == [0, 4]
    assert rows.bitmask[:2].tolist() == [row_of(matcher("xgrammar", spec))] * 2
    assert followed.stuck == [Stuck(0, 0, has_row=True), Stuck(2, 3), Stuck(3, 4, has_row=True)]
    assert paths.lengths.tolist() == [1, 1, 0, 1], "with the nodes that have rows"
    assert paths.bonus.tolist() == [-1, best[1, 0], -1, -1]
    assert paths.num_moved.tolist() == [0, 1, 0, 0]


def test_what_is_refused_is_drawn_again_from_the_hosts_logits() -> None:
    """Until the path ends, also where the best legal token is a stop token, or nothing may be drawn."""
    a, b = A, B
    tree = HostTree.from_chains([[0, a, b, STOP], [0, a], [0]])
    logits = torch.zeros((tree.num_nodes, VOCABULARY.vocab_size + 3))
    logits[:, 12] = 9.0  # which is not legal
    logits[0, a] = logits[1, b] = logits[4, a] = 1.0
    logits[5, b] = torch.nan
    logits[6, a] = -torch.inf
    logits[:, VOCABULARY.vocab_size :] = -torch.inf
    sessions = [
        GrammarSession(VOCABULARY, matcher("xgrammar", GrammarSpec.regex(r))) for r in ("ab", "ab", "a")
    ]
    best = np.full((tree.num_nodes, 1), 12, np.int32)
    paths, status = Paths(tree), np.zeros(tree.num_nodes, np.int8)
    drawn = Draws(best, np.ones(tree.num_nodes, np.int32), logits)
    followed = follow_natively(sessions, tree, drawn, paths, status)
    assert paths.nodes.tolist() == [[0, 1, 2, 3], [0, -1, -1, -1], [0, -1, -1, -1]]
    assert paths.tokens[0].tolist() == [a, b, STOP, -1]
    assert paths.bonus.tolist() == [-1, a, -1]
    assert followed.stuck == [Stuck(1, 5, is_refused=True), Stuck(2, 6, is_refused=True)]
    assert followed.num_rows == 4, "nothing was drawn from two"
    sessions[0].commit([a, b, STOP])
    assert (sessions[0].finish, sessions[0].error) == ("stop", None)
