"""How many threads: by what was measured, and never for the worse once that is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from specgrammar.grammar.workers import FillWorkers


def sleeping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_nothing_measured_is_one_thread_and_small_steps_stay_so() -> None:
    workers = FillWorkers(4)
    assert workers.num_threads(10**6) == 1
    size = (10**6).bit_length()
    workers._node_s, workers._handover_s = {(size, 1): 1e-6, (4, 1): 1e-6}, 1e-3
    assert workers.num_threads(10) == 1, "10 us of work against 1 ms of hand-over"
    assert workers.num_threads(10**6) == 4
    assert workers.num_threads(10**3) == 1, "no step of this size was measured"


def test_threads_that_did_not_help_are_not_used_until_that_has_faded() -> None:
    workers = FillWorkers(2)
    size = (10**4).bit_length()
    workers._node_s, workers._handover_s = {(size, 1): 1e-5, (size, 2): 1.2e-5}, 1e-6
    assert workers.num_threads(10**4) == 1
    for _ in range(200):
        workers.run([lambda: None], 10**4)
        workers._node_s[size, 1] = 1e-5
    assert workers._node_s[size, 2] < 0.6e-5
    assert workers.num_threads(10**4) == 2


def test_a_run_is_learnt_from() -> None:
    workers = FillWorkers(2)
    workers.run([sleeping(0.02)], 10)
    assert workers._node_s[4, 1] >= 0.002
    workers.run([sleeping(0.02)], 10)
    assert set(workers._node_s) == {(4, 1)}
    workers.run([sleeping(0.02), sleeping(0.02)], 20)
    assert workers._node_s[5, 2] >= 0.001


def test_jobs_run_on_their_own_threads_and_the_first_on_the_callers() -> None:
    workers, seen, together = FillWorkers(3), [0, 0, 0], threading.Barrier(3, timeout=20)

    def job(i: int) -> Callable[[], None]:
        def run() -> None:
            together.wait()
            seen[i] = threading.get_ident()

        return run

    workers.run([job(i) for i in range(3)], 3)
    assert len(set(seen)) == 3
    assert seen[0] == threading.get_ident()


def test_what_a_job_raises_comes_out_when_all_are_done() -> None:
    workers, done = FillWorkers(2), list[int]()

    def fails() -> None:
        raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        workers.run([lambda: done.append(1), fails], 2)
    with pytest.raises(ArithmeticError, match="planted"):
        workers.run([fails, lambda: done.append(2)], 2)
    assert done == [1, 2]
