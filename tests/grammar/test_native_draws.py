"""Which of a target's draws native code takes: the best one that is legal, and what it does where none is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specgrammar.grammar.draws import Draws, short_id_dtype
from specgrammar.grammar.native_follow import Stuck, follow_natively
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.grammar.following import A, B, Gone, draws, follow
from tests.toys import matcher, row_of


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
