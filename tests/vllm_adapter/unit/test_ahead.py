"""Jobs that are worked off beside the scheduler: all of them, each once, and never without an end."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from specgrammar_vllm.ahead import FillThreads


@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("aside", [False, True])
def test_every_job_is_done_once_when_it_is_finished(num_threads: int, aside: bool) -> None:
    threads = FillThreads(num_threads)
    for num_jobs in [0, 1, 2, 7, 40] * 20:
        done: list[int] = []
        threads.start([partial(done.append, number) for number in range(num_jobs)], aside=aside)()
        assert sorted(done) == list(range(num_jobs))
    threads.close()


def test_a_job_that_another_thread_is_at_is_waited_for() -> None:
    threads = FillThreads(1)
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def slow() -> None:
        begun.set()
        assert may_end.wait(60)
        done.append("slow")

    finish = threads.start([slow], aside=True)
    assert begun.wait(60)
    threading.Timer(0.05, may_end.set).start()
    finish()
    assert done == ["slow"]
    threads.close()


@pytest.mark.parametrize("num_threads", [0, 1])
def test_what_a_job_raises_comes_out_and_the_others_are_done(num_threads: int) -> None:
    threads = FillThreads(num_threads)
    done: list[int] = []

    def broken() -> None:
        raise ValueError("broken")

    finish = threads.start([broken, partial(done.append, 1), partial(done.append, 2)], aside=True)
    with pytest.raises(ValueError, match="broken"):
        finish()
    assert sorted(done) == [1, 2]
    threads.start([partial(done.append, 3)], aside=True)()
    assert 3 in done
    threads.close()


def test_threads_are_started_when_there_is_work_and_end() -> None:
    done: list[int] = []
    before = threading.active_count()
    threads = FillThreads(2)
    assert threading.active_count() == before
    threads.start([partial(done.append, 0)] * 3, aside=True)()
    assert threading.active_count() == before + 2
    threads.close()
    threads.close()
    assert threading.active_count() == before
