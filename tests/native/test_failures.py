"""Whatever fails in native code ends its own request, with the reason, and no other."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.test_walk import THREADS, kinds_for, toy_trees
from tests.native.walks import session, sessions, walked

METHODS = ("native_accept", "native_fill", "native_rollback")
PADDING = NodeStatus.PADDING
ONES = [-1] * TWO_WORDS.num_words


def failing(method: str, at: int = 1, message: str = "planted") -> type[CalledBack]:
    """A matcher whose n-th call of a method fails; its own `num_left` says whether it came to that."""

    class Failing(CalledBack):
        num_left = at

    def fails(self: Any, *args: Any) -> Any:
        self.num_left -= 1
        if not self.num_left:
            raise RuntimeError(message)
        return getattr(CalledBack, method)(self, *args)

    setattr(Failing, method, fails)
    return Failing


class Refuses(CalledBack):
    """Its row allows what it does not accept."""

    def native_accept(self, token: int) -> bool:
        del token
        return False


class TooWide(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        return self.calls(self._vocabulary.num_words + 1)


class RaisesBefore(CalledBack):
    def native_calls(self) -> NativeCalls | None:
        raise ZeroDivisionError("planted")


FAULTS: dict[str, tuple[type[CalledBack], str]] = {
    "accept refuses": (Refuses, "the grammar backend allows token id 0 in its row, but does not accept it"),
    "accept fails": (failing("native_accept"), "the grammar backend failed in native code: planted"),
    "fill fails at the root": (failing("native_fill"), "the grammar backend failed in native code: planted"),
    "fill fails below": (failing("native_fill", 3), "the grammar backend failed in native code: planted"),
    "rollback fails": (failing("native_rollback"), "the grammar backend failed in native code: planted"),
    "the last rollback fails": (failing("native_rollback", 2), "failed in native code: planted"),
    "rows are too wide": (TooWide, "failed in native code: its rows have 3 words, those of the step 2"),
    "native_calls raises": (RaisesBefore, "the grammar backend raised ZeroDivisionError: planted"),
}


def bushes(num_requests: int) -> HostTree:
    """Roots with two children of two tokens each, of which the first has a child that has a child."""
    parents = [-1, 0, 1, 2, 0, 4]
    tokens = [0, 0, 1, 39, 39, 0]
    return HostTree.from_parents(
        np.arange(num_requests + 1) * 6, np.tile(tokens, num_requests), np.tile(parents, num_requests)
    )


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_ends_its_own_request_alone(fault: str, dense: bool, num_threads: int) -> None:
    make, message = FAULTS[fault]
    tree = bushes(4)
    batch = [session("native", GRAMMARS[3], make if number in (1, 2) else CalledBack) for number in range(4)]
    found = walked(batch, tree, dense=dense, workers=THREADS[num_threads])
    assert [bool(error) for error in found.errors] == [False, True, True, False]
    assert all(message in error for error in found.errors[1:3])
    assert [one.finish for one in batch] == [None, "error", "error", None]
    assert found.statuses[6:18] == [PADDING] * 12
    dead = [found.rows.get(node) for node in range(6, 18)]
    assert dead == ([ONES] * 12 if dense else [None] * 12)
    well = walked(sessions([("native", GRAMMARS[3])] * 4), tree, dense=dense)
    for first in (0, 18):
        assert found.statuses[first : first + 6] == well.statuses[first : first + 6]
        assert [found.rows[node] for node in range(first, first + 6)] == [
            well.rows[node] for node in range(first, first + 6)
        ]


@settings(max_examples=200)
@given(
    st.data(),
    toy_trees(),
    st.booleans(),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(METHODS),
    st.integers(1, 6),
)
def test_in_any_batch_the_others_are_as_without_it(
    data: st.DataObject, tree: HostTree, dense: bool, num_threads: int, method: str, at: int
) -> None:
    kinds = data.draw(kinds_for(tree))
    failed = data.draw(st.integers(0, max(0, tree.bs - 1)))
    batch, well = sessions(kinds), sessions(kinds)
    if tree.bs:
        batch[failed] = session("native", kinds[failed][1], failing(method, at))
        well[failed] = session("native", kinds[failed][1])
    found = walked(batch, tree, dense=dense, workers=THREADS[num_threads])
    expected = walked(well, tree, dense=dense)
    for number in range(tree.bs):
        nodes = range(*tree.cu_nodes[number : number + 2].tolist())
        if number == failed and came_to_it(batch[number]):
            assert "planted" in found.errors[number] or found.errors[number] == expected.errors[number] != ""
            assert [found.statuses[node] for node in nodes] == [PADDING] * len(nodes)
            assert {str(found.rows.get(node)) for node in nodes} == {str(ONES if dense else None)}
            if method != "native_rollback":
                assert len(history(batch[number])) == 1, "what was done is undone"
        else:
            assert found.errors[number] == expected.errors[number]
            for node in nodes:
                assert found.statuses[node] == expected.statuses[node]
                assert found.rows.get(node) == expected.rows.get(node)


def came_to_it(one: GrammarSession) -> bool:
    assert one.cursor is not None
    num_left: int = one.cursor.matcher.num_left  # type: ignore[attr-defined]
    return num_left <= 0


def history(one: GrammarSession) -> list[object]:
    assert one.cursor is not None
    states: list[object] = one.cursor.matcher._history  # type: ignore[attr-defined]
    return states


def test_an_undo_that_fails_behind_a_failure_does_not_hide_it() -> None:
    class FailsTwice(CalledBack):
        def native_fill(self, row: Any) -> None:
            if len(self._history) > 2:
                raise RuntimeError("the first")
            super().native_fill(row)

        def native_rollback(self, num_tokens: int) -> None:
            raise RuntimeError(f"the second, of {num_tokens}")

    found = walked([session("native", GRAMMARS[3], FailsTwice)], HostTree.from_chains([[0, 0, 0]]))
    assert found.errors == ["the grammar backend failed in native code: the first"]


def test_an_undo_that_failed_is_not_tried_again() -> None:
    undone = list[int]()

    class UndoesAndFails(CalledBack):
        def native_rollback(self, num_tokens: int) -> None:
            undone.append(num_tokens)
            super().native_rollback(num_tokens)
            raise RuntimeError("planted")

    one = session("native", GRAMMARS[3], UndoesAndFails)
    assert walked([one], bushes(1)).errors == ["the grammar backend failed in native code: planted"]
    assert undone == [3]
    assert len(history(one)) == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("it said \"no\", and 'never' \\", "it said \"no\", and 'never' \\"),
        ("a percent sign: %s %n", "a percent sign: %s %n"),
        ("é and 語", "é and 語"),
        ("bytes \udcff\udcfe.", "bytes \ufffd\ufffd."),
        ("x" * 1000, "x" * 399),
        ("é" * 1000, "é" * 199 + "\ufffd"),
        ("several\nlines <state> and a dump", "several lines"),
        ("[12:00:00] grammar.cc:12: no such rule", "no such rule"),
        ("", "it gave no reason"),
        (" \n", "it gave no reason"),
    ],
)
def test_reasons_are_shown_as_they_are(said: str, shown: str) -> None:
    found = walked(
        [session("native", GRAMMARS[3], failing("native_fill", 1, said))], HostTree.from_chains([[0, 0]])
    )
    assert found.errors == [f"the grammar backend failed in native code: {shown}"]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_request_that_comes_twice_is_moved_by_one_thread_at_a_time(num_threads: int) -> None:
    inside, others = list[int](), list[int]()

    class Counted(CalledBack):
        def native_fill(self, row: Any) -> None:
            inside.append(0)
            time.sleep(0.01)
            others.append(len(inside) - 1)
            super().native_fill(row)
            inside.pop()

    one = session("native", GRAMMARS[3], Counted)
    found = walked([one] * 4, bushes(4), workers=THREADS[num_threads])
    assert others == [0] * 6
    assert found.statuses == found.statuses[:6] * 4
    assert [found.rows[node] for node in range(24)] == [found.rows[node] for node in range(6)] * 4


def test_each_request_has_its_own_reason() -> None:
    makes = [failing("native_fill", 1, f"reason {number}") for number in range(20)]
    batch = [session("native", GRAMMARS[3], make) for make in makes]
    found = walked(batch, HostTree.roots([0] * 20), workers=THREADS[3])
    assert found.errors == [
        f"the grammar backend failed in native code: reason {number}" for number in range(20)
    ]


def test_a_session_that_failed_is_not_walked_again() -> None:
    batch = [session("native", GrammarSpec.regex("a+"), failing("native_fill"))]
    tree = HostTree.from_chains([[0, 0]])
    first = walked(batch, tree)
    again = walked(batch, tree)
    assert again == first
    assert again.statuses == [PADDING, PADDING]
