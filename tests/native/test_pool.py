"""The pool's threads: shared by the interpreter's, left behind in a fork, ended with the pool."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgrammar.native.pool import NativePool
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.walks import Always, Walked, session, sessions, walked
from tests.toys import matcher

ROOT = Path(__file__).parents[2]
TREE = HostTree.from_chains([[0, 0, 39, 1]] * 6)
KINDS = [("native", GRAMMARS[3])] * 6


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def finished(script: str) -> str:
    """What a script prints, run in a process of its own that may not hang."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_pool_has_as_many_threads_as_it_says_and_they_end_with_it() -> None:
    gc.collect()
    before = num_threads()
    pools = [NativePool(number) for number in (1, 2, 5)]
    assert [pool.num_threads for pool in pools] == [1, 2, 5]
    assert num_threads() == before + 0 + 1 + 4
    pools[2].wake(5)
    pools[2].wake(3)
    del pools
    gc.collect()
    assert num_threads() == before


def test_workers_that_go_end_their_threads() -> None:
    gc.collect()
    before = num_threads()
    for _ in range(20):
        assert walked(sessions(KINDS), TREE, workers=Always(4)).errors == [""] * 6
    gc.collect()
    assert num_threads() == before


def test_a_pool_wakes_any_number_of_threads_in_any_order() -> None:
    """The wake-ups of one call are not taken for those of another."""
    pool = NativePool(4)
    for step in range(4000):
        pool.wake(1 + step * 7 % 5)


def test_threads_that_were_roused_are_there_for_any_call() -> None:
    """Also for one that wants fewer or more of them, for the next one, and where none comes in time."""
    pool = NativePool(4)
    for step in range(2000):
        pool.rouse(1 + step % 5)
        if step % 3:
            pool.rouse(1 + step * 3 % 5)
        if not step % 500:
            time.sleep(2e-3)  # they sleep again
        if step % 7:
            pool.wake(1 + step * 7 % 5)


def threads_here() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def num_turns(thread: str) -> int:
    """How often a thread was given a core."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[2])


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_those_are_roused_that_are_wanted() -> None:
    before = threads_here()
    pool = NativePool(2)
    (thread,) = threads_here() - before
    pool.wake(2)
    turns = -1
    while turns != (turns := num_turns(thread)):  # until it sleeps
        time.sleep(0.05)
    pool.rouse(1)
    time.sleep(0.05)
    assert num_turns(thread) == turns, "the caller alone is wanted"
    pool.rouse(2)
    deadline = time.monotonic() + 20
    while num_turns(thread) == turns:
        assert time.monotonic() < deadline, "it sleeps on"
        time.sleep(1e-3)


def together(work: Callable[[], None], num_threads: int) -> None:
    """Run the same work on some threads of the interpreter."""
    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_threads_are_roused_while_others_walk() -> None:
    workers, expected, wrong = Always(3), walked(sessions(KINDS), TREE), list[Walked]()

    def walks() -> None:
        for step in range(100):
            workers._pool.rouse(step % 5)
            if (found := walked(sessions(KINDS), TREE, workers=workers)) != expected:
                wrong.append(found)

    together(walks, 3)
    assert wrong == []


def test_roused_threads_end_with_their_pool() -> None:
    gc.collect()
    before = num_threads()
    for _ in range(50):
        pool = NativePool(3)
        pool.rouse(3)
        del pool
    gc.collect()
    assert num_threads() == before


def test_another_thread_walks_while_the_pool_is_in_use() -> None:
    workers, goes_on = Always(2), threading.Event()
    inside = threading.Barrier(3, timeout=20)

    class Waits(CalledBack):
        """Holds both threads of the pool until somebody else has walked with it."""

        def native_fill(self, row: Any) -> None:
            inside.wait()
            assert goes_on.wait(20)
            super().native_fill(row)

    roots, results = HostTree.roots([0, 0]), list[Walked]()
    batch = [session("native", GRAMMARS[3], Waits) for _ in range(2)]
    holder = threading.Thread(target=lambda: results.append(walked(batch, roots, workers=workers)))
    holder.start()
    inside.wait()
    alone = walked(sessions(KINDS), TREE)
    assert walked(sessions(KINDS), TREE, workers=workers) == alone
    goes_on.set()
    holder.join(20)
    assert not holder.is_alive()
    assert results == [walked(sessions(KINDS[:2]), roots)]


def test_many_threads_walk_with_one_pool() -> None:
    workers, expected, wrong = Always(3), walked(sessions(KINDS), TREE), list[Walked]()

    def walks() -> None:
        for _ in range(50):
            found = walked(sessions(KINDS), TREE, workers=workers)
            if found != expected:
                wrong.append(found)

    together(walks, 4)
    assert wrong == []


def test_a_thread_that_wakes_late_changes_nothing_of_other_calls() -> None:
    """What is shared out is over before all are awake: those that are not are not waited for."""
    workers = Always(4)
    sizes = [1 + step * 5 % 6 for step in range(400)]
    expected = {
        size: walked(sessions(KINDS[:size]), HostTree.from_chains([[0, 0, 39, 1]] * size)) for size in sizes
    }
    for size in sizes:
        tree = HostTree.from_chains([[0, 0, 39, 1]] * size)
        assert walked(sessions(KINDS[:size]), tree, workers=workers) == expected[size]


FORK = """
import gc, os, signal, threading
from tests.native.walks import Always, session, sessions, walked
from tests.native.test_pool import KINDS, TREE
from tests.called_back import CalledBack
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree

workers = Always(3)
expected = walked(sessions(KINDS), TREE, workers=workers)
goes_on, inside = threading.Event(), threading.Barrier(2, timeout=20)

class Waits(CalledBack):
    def native_fill(self, row):
        inside.wait()
        goes_on.wait(20)
        super().native_fill(row)

holder = threading.Thread(
    target=walked,
    args=([session("native", GRAMMARS[3], Waits), session("native", GRAMMARS[3])], HostTree.roots([0, 0])),
    kwargs={"workers": workers},
)
if IN_USE:
    holder.start()
    inside.wait()
child = os.fork()
if not child:
    signal.alarm(30)  # it ends, whatever hangs
    workers._pool.rouse(3)
    ok = all(walked(sessions(KINDS), TREE, workers=workers) == expected for _ in range(3))
    del workers, holder
    gc.collect()
    ok = ok and walked(sessions(KINDS), TREE, workers=Always(3)) == expected
    os._exit(0 if ok else 3)
goes_on.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(walked(sessions(KINDS), TREE, workers=workers) == expected)
"""


@pytest.mark.parametrize("in_use", [False, True])
def test_a_forked_child_walks_with_its_parents_pool(in_use: bool) -> None:
    script = FORK.replace("IN_USE", str(in_use))
    if sys.version_info >= (3, 12):  # which warns of every fork beside threads
        script = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + script
    assert finished(script).split() == ["0", "True"]


def test_a_forked_child_frees_its_parents_pool() -> None:
    """None of the pool's threads is there, and the system may have given their ids to others."""
    script = """
import os, signal, threading
from specgrammar.native.pool import NativePool

pool = NativePool(4)
child = os.fork()
if not child:
    signal.alarm(30)
    goes_on = threading.Event()
    others = [threading.Thread(target=goes_on.wait) for _ in range(8)]
    for other in others:
        other.start()
    del pool
    goes_on.set()
    for other in others:
        other.join()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    if sys.version_info >= (3, 12):  # which warns of every fork beside threads
        script = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + script
    assert finished(script) == "0\n"


def test_a_pool_says_how_many_threads_it_really_has() -> None:
    gc.collect()
    before = num_threads()
    pool = NativePool(1000)
    assert pool.num_threads == 1 + num_threads() - before


def test_a_pool_for_which_the_system_has_no_threads_is_none() -> None:
    """Some start, then there is no memory for another stack: those that started end again."""
    script = """
import os, resource
from pathlib import Path
from specgrammar.native.library import core
from specgrammar.native.pool import NativePool
core()
NativePool(2)
stack = 8 << 20
resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.RLIM_INFINITY))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 4 * stack, resource.RLIM_INFINITY))
pool = NativePool(40)
print(pool.num_threads, pool.handle, len(os.listdir("/proc/self/task")))
pool.wake(40)
"""
    assert finished(script).split() == ["1", "None", "1"]


def test_threads_that_wait_do_not_keep_a_process_from_ending() -> None:
    script = """
from tests.native.walks import Always
kept = Always(3)
print("done")
"""
    assert finished(script) == "done\n"


def test_a_walk_that_goes_on_does_not_keep_a_process_from_ending() -> None:
    """Its pool is not freed below it either. The fill that does not end is in C, without the interpreter."""
    script = """
import ctypes, threading, time
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.testing.checks.calls_table import CallsTable, Fill, Move, Reason
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.walks import Always, session, walked

table = CallsTable(2, Move(), ctypes.cast(ctypes.CDLL(None).pause, Fill), Move(), Reason())

class Stays(CalledBack):
    def native_calls(self):
        return NativeCalls(ctypes.addressof(table), id(self))

batch = [session("native", GRAMMARS[3], Stays) for _ in range(2)]
kept = {"workers": Always(2)}
threading.Thread(target=walked, args=(batch, HostTree.roots([0, 0])), kwargs=kept, daemon=True).start()
time.sleep(0.5)
print("done")
"""
    assert finished(script) == "done\n"


@pytest.mark.parametrize("num_threads", [1, 3])
def test_walks_that_take_the_interpreters_lock_let_it_end(num_threads: int) -> None:
    """It ends threads that ask for its lock then, and with one of C++ the process."""
    script = """
import threading, time
import numpy as np
from specgrammar import GrammarSession
from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.rows import MaskRows
from specgrammar.testing.toys import GRAMMARS, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.native.walks import Always
from tests.toys import matcher

tree = HostTree.from_chains([[0, 0, 39, 1, 38]] * 64)
batch = [GrammarSession(VOCABULARY, matcher("llguidance", GRAMMARS[3])) for _ in range(64)]
bitmask = np.zeros((320, VOCABULARY.num_words), np.int32)
workers = Always(NUM_THREADS)

def walk():
    while True:
        fill_rows(batch, tree, MaskRows(bitmask, 320), workers)

threading.Thread(target=walk, daemon=True).start()
time.sleep(0.3)
print("done")
"""
    assert finished(script.replace("NUM_THREADS", str(num_threads))) == "done\n"


def test_nothing_native_is_freed_when_the_interpreter_ends() -> None:
    """Daemon threads may be inside of it."""
    kept = [NativePool(2), matcher("xgrammar", GRAMMARS[3]), matcher("llguidance", GRAMMARS[3])]
    finalizers = [one for one in list(weakref.finalize._registry) if one.alive]  # type: ignore[attr-defined]
    frees = {one: one.peek()[1].__name__ for one in finalizers if hasattr(one.peek()[1], "__name__")}
    native = {name: one.atexit for one, name in frees.items() if name.startswith("specgrammar_")}
    assert native == dict.fromkeys(
        ["specgrammar_pool_free", "specgrammar_xgrammar_free", "specgrammar_llguidance_free"], False
    )
    del kept
