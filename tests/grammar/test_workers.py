"""How many threads: each number is tried, then what was measured to be fastest is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.grammar.workers import FillWorkers

NUM_NODES = 1000


def sleeping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def told(workers: FillWorkers, spent: dict[int, float], num_steps: int) -> list[int]:
    """The numbers that steps were given, when a step with n threads is said to take `spent[n]` seconds."""
    workers._handover_s = 1e-6
    chosen = []
    for _ in range(num_steps):
        threads = workers.num_threads(NUM_NODES)
        workers._size(NUM_NODES).learn(threads, spent[threads] / NUM_NODES)
        chosen.append(threads)
    return chosen


def test_every_number_is_tried_twice_and_then_the_fastest_is_used() -> None:
    assert told(FillWorkers(2), {1: 2e-3, 2: 1e-3}, 8) == [1, 2, 1, 2, 2, 2, 2, 2]
    assert told(FillWorkers(2), {1: 1e-3, 2: 2e-3}, 8) == [1, 2, 1, 2, 1, 1, 1, 1]
    assert told(FillWorkers(6), {1: 4e-3, 2: 3e-3, 4: 2e-3, 6: 3e-3}, 12)[8:] == [4, 4, 4, 4]


@given(st.permutations(range(1, 9)), st.integers(2, 8))
def test_the_fastest_is_used_in_nearly_every_step(milliseconds: list[int], max_threads: int) -> None:
    spent = {threads: 1e-3 * milliseconds[threads - 1] for threads in range(1, max_threads + 1)}
    chosen = told(FillWorkers(max_threads), spent, 400)
    best = min(set(chosen), key=spent.__getitem__)
    assert chosen.count(best) >= 400 - 2 * len(set(chosen)) - 400 // 50


def test_what_changed_is_noticed() -> None:
    workers = FillWorkers(2)
    assert told(workers, {1: 2e-3, 2: 1e-3}, 20)[-1] == 2
    assert told(workers, {1: 2e-3, 2: 5e-3}, 100)[-1] == 1, "another process uses the core"
    assert told(workers, {1: 2e-3, 2: 1e-3}, 1000)[-1] == 2


def test_small_steps_are_never_shared() -> None:
    workers = FillWorkers(4)
    workers._handover_s = 1e-3
    for _ in range(100):
        assert workers.num_threads(10) == 1
        workers._size(10).learn(1, 1e-5)


def test_a_run_is_learnt_from() -> None:
    workers = FillWorkers(2)
    workers.run([sleeping(0.02), sleeping(0.02)], 1, 10)
    assert workers._size(10).seconds_per_node(1) >= 0.004
    workers.run([sleeping(0.02), sleeping(0.02)], 2, 20)
    assert workers._size(20).seconds_per_node(2) >= 0.001
    assert not workers._size(10).tried(2)


def test_jobs_run_on_as_many_threads_as_asked_and_each_once() -> None:
    workers, seen, together = FillWorkers(3), list[int](), threading.Barrier(3, timeout=20)

    def job() -> None:
        together.wait()
        seen.append(threading.get_ident())

    workers.run([job] * 6, 3, 3)
    assert len(seen) == 6
    assert len(set(seen)) == 3
    assert threading.get_ident() in seen


def test_what_a_job_raises_comes_out_when_all_are_done() -> None:
    workers, done = FillWorkers(2), list[int]()

    def fails() -> None:
        raise ArithmeticError("planted")

    for num_threads in (1, 2):
        with pytest.raises(ArithmeticError, match="planted"):
            workers.run([lambda: done.append(1), fails, lambda: done.append(2)], num_threads, 2)
    assert sorted(done) == [1, 1, 2, 2]
