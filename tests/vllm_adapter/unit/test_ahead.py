"""Jobs that are worked off beside the scheduler: all of them, each once, and never without an end."""

from __future__ import annotations

import threading

import pytest

from specgrammar_vllm.ahead import FillThreads


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_every_job_is_done_once_when_it_is_finished(num_threads: int) -> None:
    threads = FillThreads(num_threads)
    for num_jobs in [0, 1, 2, 7, 40] * 20:
        done: list[int] = []
        threads.start(done.append, num_jobs).finish()
        assert sorted(done) == list(range(num_jobs))
    threads.close()


def test_a_job_that_another_thread_is_at_is_waited_for() -> None:
    threads = FillThreads(1)
    begun, may_end, done = threading.Event(), threading.Event(), list[int]()

    def slow(number: int) -> None:
        begun.set()
        assert may_end.wait(60)
        done.append(number)

    jobs = threads.start(slow, 1)
    assert begun.wait(60)
    threading.Timer(0.05, may_end.set).start()
    jobs.finish()
    assert done == [0]
    threads.close()


@pytest.mark.parametrize("num_threads", [0, 1])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_job_raises_comes_out_and_the_others_are_done(
    num_threads: int, error: type[BaseException]
) -> None:
    threads = FillThreads(num_threads)
    done: list[int] = []

    def job(number: int) -> None:
        if number == 1:
            raise error("broken")
        done.append(number)

    jobs = threads.start(job, 3)
    with pytest.raises(error, match="broken"):
        jobs.finish()
    assert sorted(done) == [0, 2]
    threads.start(done.append, 4).finish()
    assert 3 in done
    threads.close()


def test_threads_are_started_when_there_is_work_and_end() -> None:
    done: list[int] = []
    before = threading.active_count()
    threads = FillThreads(2)
    assert threading.active_count() == before
    threads.start(done.append, 3).finish()
    assert threading.active_count() == before + 2
    threads.close()
    threads.close()
    assert threading.active_count() == before
