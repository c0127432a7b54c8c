"""How many threads: each number is tried, then what was measured to be fastest is used."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.native import pool
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.testing.toys import GRAMMARS, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.conformance.broken.rejected import backend_of

NUM_NODES = 1000


def rows_for(tree: HostTree) -> MaskRows:
    """Rows of the compact layout."""
    num_nodes = len(tree.draft_tokens)
    return MaskRows(
        np.empty((num_nodes, VOCABULARY.num_words), np.int32), num_nodes, np.empty(num_nodes, np.int32)
    )


def told(workers: FillWorkers, spent: dict[int, float], num_steps: int) -> list[int]:
    """The numbers that steps were given, when a step with n threads is said to take `spent[n]` seconds."""
    workers._handover_s = 1e-6
    chosen = []
    for _ in range(num_steps):
        threads = workers.num_threads(NUM_NODES)
        workers._size(NUM_NODES).learn(threads, spent[threads] / NUM_NODES)
        chosen.append(threads)
    return chosen


def test_every_number_is_tried_three_times_and_then_the_fastest_is_used() -> None:
    assert told(FillWorkers(2), {1: 2e-3, 2: 1e-3}, 10) == [1, 2, 1, 2, 1, 2, 2, 2, 2, 2]
    assert told(FillWorkers(2), {1: 1e-3, 2: 2e-3}, 10) == [1, 2, 1, 2, 1, 2, 1, 1, 1, 1]
    assert told(FillWorkers(6), {1: 4e-3, 2: 3e-3, 4: 2e-3, 6: 3e-3}, 20)[12:] == [4] * 8


def test_a_choice_that_was_disturbed_is_corrected_soon() -> None:
    """All tries of two threads fall into a moment in which the second core is busy."""
    workers = FillWorkers(2)
    assert told(workers, {1: 2e-3, 2: 5e-3}, 8)[6:] == [1, 1]
    assert told(workers, {1: 2e-3, 2: 1e-3}, 12) == [1, 1, *[2] * 10]


@given(st.permutations(range(1, 9)), st.integers(2, 8))
def test_the_fastest_is_used_in_nearly_every_step(milliseconds: list[int], max_threads: int) -> None:
    spent = {threads: 1e-3 * milliseconds[threads - 1] for threads in range(1, max_threads + 1)}
    chosen = told(FillWorkers(max_threads), spent, 400)
    best = min(set(chosen), key=spent.__getitem__)
    assert chosen.count(best) >= 400 - 3 * len(set(chosen)) - 3 * 7


def test_what_changed_is_noticed() -> None:
    workers = FillWorkers(2)
    assert told(workers, {1: 2e-3, 2: 1e-3}, 20)[-1] == 2
    assert told(workers, {1: 2e-3, 2: 5e-3}, 100)[-1] == 1, "another process uses the core"
    assert told(workers, {1: 2e-3, 2: 1e-3}, 1000)[-1] == 2


def test_a_number_that_was_measured_in_better_times_is_tried_again_before_it_is_used() -> None:
    """All steps become slower: what one thread took before says nothing any more."""
    workers = FillWorkers(2)
    assert told(workers, {1: 1.5e-3, 2: 1e-3}, 90)[-5:] == [2] * 5
    assert told(workers, {1: 3e-3, 2: 2e-3}, 10).count(1) == 3


def test_a_clock_that_runs_backwards_leaves_one_thread() -> None:
    workers = FillWorkers(2)
    workers._handover_s = 1e-6
    for _ in range(30):
        assert workers.num_threads(100) == 1
        workers._size(100).learn(1, -1.0)


def test_small_steps_are_never_shared() -> None:
    workers = FillWorkers(4)
    workers._handover_s = 1e-3
    for _ in range(100):
        assert workers.num_threads(10) == 1
        workers._size(10).learn(1, 1e-5)


def test_few_numbers_are_tried_whatever_steps_of_a_size_take() -> None:
    """How many could pay is another number for each step, and each would be tried three times."""
    workers, chosen = FillWorkers(24), list[int]()
    workers._handover_s = 1e-5
    for step in range(300):
        num_nodes = 1024 + step * 37 % 1000
        threads = workers.num_threads(num_nodes)
        chosen.append(threads)
        workers._size(num_nodes).learn(threads, 4e-7 * (1 + step % 3 / 10) / threads)
    assert set(chosen) == {1, 2, 4, 8, 16, 24}
    assert chosen[100:].count(24) >= 190


def test_a_run_is_learnt_from() -> None:
    workers, given = FillWorkers(2), list[tuple[int, int | None]]()

    def work(num_threads: int, pool: int | None) -> int:
        given.append((num_threads, pool))
        time.sleep(0.02 if num_threads == 1 else 0.005)
        return 10

    for _ in range(10):
        workers.run(work, 10)
    assert [num_threads for num_threads, _ in given] == [1, 2, 1, 2, 1, *[2] * 5], "the faster one is used"
    assert {pool for _, pool in given} == {workers._pool.handle}
    assert workers._pool.handle is not None
    assert 0.002 <= workers._size(10).seconds_per_node(1) < 0.02
    assert 0.0005 <= workers._size(10).seconds_per_node(2) < 0.01
    assert not workers._size(10).tried(3)
    assert not workers._size(1000).tried(1), "a step of another size says nothing about it"


def test_steps_with_little_to_do_are_no_faster_than_others() -> None:
    """Of ten nodes two are live in every second step: what it took is counted by those."""
    workers, given = FillWorkers(2), list[int]()

    def work(num_threads: int, _: int | None) -> int:
        given.append(num_threads)
        num_live = 2 if len(given) % 2 else 10  # the first steps with one thread have little to do
        time.sleep(num_live * (1e-3 if num_threads == 1 else 6e-4))
        return num_live

    for _ in range(24):
        workers.run(work, 10)
    assert [given[step] for step in range(6, 24) if step not in (10, 11, 12, 20, 21, 22)] == [2] * 12


def test_threads_of_the_interpreter_learn_side_by_side() -> None:
    """One may begin to try a number again while another learns what it took."""
    workers, failed, interval = FillWorkers(2), list[BaseException](), sys.getswitchinterval()

    def steps() -> None:
        try:
            for step in range(3000):
                threads = workers.num_threads(NUM_NODES)
                workers._size(NUM_NODES).learn(threads, 1e-6 * (1 + step * 7 % 5))
        except BaseException as error:
            failed.append(error)

    sys.setswitchinterval(1e-6)
    try:
        others = [threading.Thread(target=steps) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []


def test_what_fails_is_not_learnt_from() -> None:
    """It may have taken no time at all."""
    workers = FillWorkers(2)

    def fails(*_: object) -> int:
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        workers.run(fails, 10)
    assert not workers._size(10).tried(1)


def waiting(
    num_threads: int, num_requests: int, timeout_s: float = 20
) -> tuple[list[GrammarSession], set[int]]:
    """Requests whose fills wait until `num_threads` of them run at once; and the threads that filled."""
    together, seen = threading.Barrier(num_threads, timeout=timeout_s), set[int]()

    class Waiting(CalledBack):
        def native_fill(self, row: Any) -> None:
            seen.add(threading.get_native_id())
            together.wait()
            super().native_fill(row)

    backend = backend_of(Waiting)(VOCABULARY)
    grammar = backend.compile(GRAMMARS[0])
    return [GrammarSession(VOCABULARY, backend.matcher(grammar)) for _ in range(num_requests)], seen


class Always(FillWorkers):
    """As many threads as there are."""

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:  # noqa: ARG002
        return self.max_threads


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_run_at_the_same_time(num_threads: int) -> None:
    workers = Always(num_threads)
    for _ in range(3):
        sessions, seen = waiting(num_threads, 2 * num_threads)
        rows = rows_for(tree := HostTree.roots([0] * len(sessions)))
        fill_rows(sessions, tree, rows, workers)
        assert [session.error for session in sessions] == [None] * len(sessions)
        assert (rows.status == NodeStatus.LIVE).all()
        assert len(seen) == num_threads
        assert threading.get_native_id() in seen, "the caller is one of them"


def test_one_thread_waits_for_others_in_vain() -> None:
    """What the test above relies on."""
    sessions, seen = waiting(2, 2, timeout_s=0.1)
    fill_rows(sessions, tree := HostTree.roots([0, 0]), rows_for(tree), Always(1))
    assert all(session.finish == "error" for session in sessions)
    assert seen == {threading.get_native_id()}


def test_all_threads_are_one_where_there_is_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "core", lambda: None)
    workers, given = FillWorkers(4), list[tuple[int, int | None]]()
    assert workers.max_threads == 1

    def work(num_threads: int, handle: int | None) -> int:
        given.append((num_threads, handle))
        return NUM_NODES

    for _ in range(5):
        workers.run(work, NUM_NODES)
    assert given == [(1, None)] * 5
