"""Compilation beside the step: what is shared, what is remembered, what is killed, and that nothing is left."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specgrammar.errors import GrammarCompileError, PluginError, WeakenedSchemaError
from specgrammar.grammar import compile_service
from specgrammar.grammar.compile import CompileInterruptedError, compile_grammar
from specgrammar.grammar.compile_cache import CompileCache
from specgrammar.grammar.compile_service import CompileService
from specgrammar.protocols.abilities import KnowsItsSize, SupportsTrial
from specgrammar.protocols.grammar import GrammarSpec
from tests.grammar.compilers import Compiler, TriedCompiler, spec
from tests.toys import backend

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tried() -> Iterator[CompileService]:
    service = CompileService(TriedCompiler(), timeout_s=1.0)
    yield service
    service.close()


def pids(service: CompileService) -> list[int]:
    return [process.pid for process in service._trials if process.pid is not None]


def is_gone(pid: int) -> bool:
    """Whether no process has this id, not even a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


# -- one flight, one cache -----------------------------------------------------------------------------------


def test_many_requests_with_one_spec_compile_once() -> None:
    compiler = Compiler()
    service = CompileService(compiler)
    with ThreadPoolExecutor(8) as pool:
        tickets = list(pool.map(lambda _: service.submit(spec("wait")), range(100)))
    assert not any(ticket.done() for ticket in tickets)
    compiler.release.set()
    results = {id(ticket.result()) for ticket in [*tickets, service.submit(spec("wait"))]}
    assert len(results) == 1
    assert compiler.compiled == ["wait"]


def test_a_refusal_is_remembered_and_what_went_wrong_is_tried_again() -> None:
    compiler = Compiler()
    service = CompileService(compiler, timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(GrammarCompileError, match=r"^as it is$"):
            service.submit(spec("refuse")).result()
    assert compiler.compiled == ["refuse"]
    with pytest.raises(CompileInterruptedError, match="backend failed: no such thing"):
        service.submit(spec("fail")).result()
    with pytest.raises(CompileInterruptedError, match=r"not compiled within 0\.05 s \(compile_timeout_s\)"):
        service.submit(spec("wait")).result()
    compiler.release.set()
    until(lambda: "wait" in compiler.compiled)
    assert service.submit(spec("wait")).result().spec == spec("wait")
    assert compiler.compiled == ["refuse", "wait", "wait"]


def test_what_no_backend_could_take_is_refused_at_once() -> None:
    wrong: Any = 5
    ticket = CompileService(Compiler()).submit(GrammarSpec("regex", wrong))
    assert ticket.done()
    with pytest.raises(GrammarCompileError, match="expected text"):
        ticket.result()


def test_kinds_that_the_backend_does_not_compile_are_refused_at_once() -> None:
    compiler = Compiler(facts=dataclasses.replace(Compiler().facts, kinds=frozenset({"choice", "regex"})))
    service = CompileService(compiler)
    ticket = service.submit(GrammarSpec.json_object())
    assert ticket.done()
    expected = r"^backend Compiler compiles no json_object; it compiles: choice, regex$"
    with pytest.raises(GrammarCompileError, match=expected):
        ticket.result()
    with pytest.raises(GrammarCompileError, match=expected):
        compile_grammar(compiler, GrammarSpec.json_object())
    assert service.submit(spec("quick")).result()
    assert compiler.compiled == ["quick"]


@pytest.mark.parametrize(("entries", "num_bytes"), [(3, 10**9), (1000, 3100)])
def test_the_cache_keeps_the_latest_within_its_bounds(entries: int, num_bytes: int) -> None:
    compiler = Compiler()
    cache = CompileCache(entries, num_bytes)
    service = CompileService(compiler, cache=cache)

    def compile_all(*sources: str) -> list[str]:
        compiler.compiled.clear()
        for source in sources:
            service.submit(spec(source)).result()
        return list(compiler.compiled)

    assert compile_all("a", "b", "c", "a", "d") == ["a", "b", "c", "d"]
    assert (len(cache), cache.num_bytes) == (3, 3003)
    assert compile_all("c", "d", "a") == []
    assert compile_all("b", "c") == ["b", "c"]


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache = CompileCache(10, 1500)
    service = CompileService(Compiler(), cache=cache)
    service.submit(spec("a")).result()
    service.submit(spec("b" * 600)).result()
    assert (len(cache), cache.num_bytes) == (1, 1001)


def test_a_cache_may_be_shared_by_backends_and_mixes_nothing_up() -> None:
    cache = CompileCache(100, 10**9)
    other = dataclasses.replace(Compiler().vocabulary, stop_ids=(0,))
    compilers = [Compiler(), Compiler(), Compiler(), Compiler(vocabulary=other), TriedCompiler()]
    options: list[dict[str, Any]] = [{}, {}, {"a": 1}, {}, {}]
    for compiler, given in zip(compilers, options, strict=True):
        service = CompileService(compiler, options=given, cache=cache)
        for of in (spec("quick"), GrammarSpec("regex", "quick", "compact")):
            service.submit(of).result()
        service.close()
    assert [len(compiler.compiled) for compiler in compilers] == [2, 0, 2, 2, 2]


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_what_a_real_backend_compiled_has_a_size(name: str) -> None:
    cache = CompileCache(10, 10**9)
    service = CompileService(backend(name), cache=cache)
    compiled = service.submit(GrammarSpec.regex("(ab)+c")).result()
    assert backend(name).matcher(compiled).accept(0)
    assert isinstance(compiled, KnowsItsSize) == (name == "xgrammar")
    assert 100 < cache.num_bytes < 100_000


# -- nobody waits for somebody else --------------------------------------------------------------------------


def test_slow_ones_do_not_hold_others_up() -> None:
    compiler = Compiler()
    service = CompileService(compiler)
    slow = [service.submit(spec(f"wait {i}")) for i in range(8)]
    for i in range(20):
        assert service.submit(spec(f"quick {i}")).result()
    assert not any(ticket.done() for ticket in slow)
    compiler.release.set()
    assert [ticket.result().spec.source for ticket in slow] == [f"wait {i}" for i in range(8)]


def test_a_trial_does_not_hold_others_up(tried: CompileService) -> None:
    hanging = tried.submit(spec("sleep"))
    assert tried.submit(spec("other")).result()
    assert tried.submit(spec("quick")).result()
    assert not hanging.done()


def test_waiting_is_bounded_and_for_all() -> None:
    compiler = Compiler()
    service = CompileService(compiler)
    tickets = [service.submit(spec("quick")), service.submit(spec("wait"))]
    tickets[0].result()
    assert service.wait(tickets[:1], 0)
    assert not service.wait(tickets, 0.01)
    compiler.release.set()
    assert service.wait(tickets)
    assert service.wait([])


def test_threads_go_when_there_is_no_work() -> None:
    service = CompileService(Compiler())
    for i in range(50):
        service.submit(spec(f"quick {i}")).result()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("specgrammar-compile-here")])


# -- the child -----------------------------------------------------------------------------------------------


def test_what_may_hang_is_tried_first_in_one_child_that_stays(tried: CompileService) -> None:
    assert tried.submit(spec("quick")).result()
    assert pids(tried) == []
    assert tried.submit(spec("a")).result()
    (pid,) = pids(tried)
    assert tried.submit(spec("print")).result().spec.source == "print"
    assert pids(tried) == [pid]
    assert isinstance(tried._backend, SupportsTrial)


@pytest.mark.parametrize("source", ["hang", "sleep"])
def test_a_compiler_that_hangs_is_killed_at_the_limit(tried: CompileService, source: str) -> None:
    compiler: Any = tried._backend
    assert tried.submit(spec("a")).result()
    (pid,) = pids(tried)
    ticket = tried.submit(spec(source))
    with pytest.raises(CompileInterruptedError, match=r"^regex: not compiled within 1 s \(compile_timeout_s\)"):
        ticket.result()
    assert is_gone(pid)
    assert compiler.compiled == ["a"], "it never ran here"
    assert tried.submit(spec("b")).result(), "the next child does the next one"
    with pytest.raises(CompileInterruptedError):
        tried.submit(spec(source)).result()
    assert is_gone(pid)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "crash",
            r"the compiler crashed \(SIGABRT\); it may have needed more than the 64 MB \(compile_memory_mb",
        ),
        ("leave", r"the compiler crashed \(exit status 7\)"),
        ("eat", r"the compiler is out of memory"),
    ],
)
def test_a_compiler_that_crashes_fails_its_own_grammar(source: str, words: str) -> None:
    with contextlib.closing(CompileService(TriedCompiler(), memory_bytes=64 << 20)) as service:
        bad, good = service.submit(spec(source)), service.submit(spec("a"))
        with pytest.raises(CompileInterruptedError, match=f"^regex: {words}"):
            bad.result()
        assert good.result()
        assert len(pids(service)) == 1
        with pytest.raises(CompileInterruptedError):  # not cached: tried and crashed again
            service.submit(spec(source)).result()


def test_refusals_in_the_child_are_refusals(tried: CompileService) -> None:
    for source, kind in (("refuse", GrammarCompileError), ("weaken", WeakenedSchemaError)):
        with pytest.raises(GrammarCompileError) as caught:
            tried.submit(spec(source)).result()
        assert type(caught.value) is kind
        again = tried.submit(spec(source))
        assert again.done()
    with pytest.raises(CompileInterruptedError, match="backend failed: no such thing"):
        tried.submit(spec("fail")).result()


def test_an_idle_child_that_died_is_replaced(tried: CompileService) -> None:
    tried.submit(spec("a")).result()
    (pid,) = pids(tried)
    os.kill(pid, 9)
    until(lambda: pids(tried) == [])
    assert tried.submit(spec("b")).result()


def test_xgrammar_runs_long_only_in_the_child() -> None:
    """The real library on a regex that takes it seconds here and minutes with a real vocabulary."""
    evil = GrammarSpec.regex("(.{1,50} ){1,90}")
    with contextlib.closing(CompileService(backend("xgrammar"), timeout_s=0.5)) as service:
        good = service.submit(GrammarSpec.grammar('root ::= "a" root | "b"'))
        with pytest.raises(CompileInterruptedError, match=r"not compiled within 0\.5 s"):
            service.submit(evil).result()
        assert backend("xgrammar").matcher(good.result()).accept(0)


# -- what nobody wants ---------------------------------------------------------------------------------------


def test_a_trial_that_nobody_wants_any_more_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_service, "_UNWANTED_S", 0.05)
    with contextlib.closing(CompileService(TriedCompiler(), timeout_s=600)) as service:
        tickets = [service.submit(spec("sleep")) for _ in range(2)]
        until(lambda: len(pids(service)) == 1)
        (pid,) = pids(service)
        tickets[0].drop()
        time.sleep(0.2)
        assert not is_gone(pid), "somebody waits for it"
        tickets[1].drop()
        until(lambda: is_gone(pid))
        assert not service._flights


def test_what_was_dropped_before_it_began_never_runs() -> None:
    compiler = TriedCompiler()
    with contextlib.closing(CompileService(compiler, timeout_s=0.5)) as service:
        hanging = [service.submit(spec(f"sleep {i}")) for i in range(2)]
        dropped, kept = service.submit(spec("a")), service.submit(spec("b"))
        dropped.drop()
        assert kept.result()
        assert not dropped.done()
        assert compiler.compiled == ["b"]
        assert all(ticket.done() for ticket in hanging)
        assert service.submit(spec("a")).result(), "it can be asked for again"


# -- without a child, and the end ----------------------------------------------------------------------------


def test_without_a_child_it_is_the_thread_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    service = CompileService(TriedCompiler())
    with caplog.at_level(logging.WARNING):
        for source in ("a", "b", "c"):
            assert service.submit(spec(source)).result()
    assert len(caplog.records) == 1
    assert "frozen application" in caplog.text


def test_a_recipe_that_cannot_travel_is_refused_at_once() -> None:
    class Local(TriedCompiler):
        def recipe(self) -> Any:
            return lambda: self

    with pytest.raises(
        PluginError, match=r"^backend Local: its recipe cannot be pickled: .*functools\.partial"
    ):
        CompileService(Local())


class Broken(TriedCompiler):
    """Its recipe makes no backend."""

    def recipe(self) -> Any:
        return partial(int, "x")


def test_a_recipe_that_fails_in_the_child_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(CompileService(Broken())) as service, caplog.at_level(logging.WARNING):
        assert service.submit(spec("a")).result()
        assert pids(service) == []
    assert "the backend could not be made there: ValueError: invalid literal" in caplog.text


def test_a_service_that_is_collected_leaves_no_process() -> None:
    service = CompileService(TriedCompiler())
    service.submit(spec("a")).result()
    (pid,) = pids(service)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("specgrammar-compile")])
    del service
    gc.collect()
    assert is_gone(pid)


def test_a_closed_service_says_so(tried: CompileService) -> None:
    under_way = tried.submit(spec("sleep"))
    until(lambda: len(pids(tried)) == 1)
    tried.close()
    with pytest.raises(CompileInterruptedError):
        under_way.result()
    with pytest.raises(CompileInterruptedError, match="the engine has ended"):
        tried.submit(spec("a")).result()


def run_program(body: str) -> subprocess.CompletedProcess[str]:
    program = "import os, sys\nfrom tests.grammar.compilers import *\n"
    program += "from specgrammar.grammar.compile_service import CompileService\n" + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("under_way", ["a", "sleep", "hang"])
def test_an_interpreter_ends_cleanly_whatever_is_under_way(under_way: str) -> None:
    done = run_program(f"""
        service = CompileService(TriedCompiler())
        service.submit(spec("a")).result()
        service.submit(spec("{under_way}"))
        print([process.pid for process in service._trials if process.pid][0])
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert is_gone(int(done.stdout))


def test_an_interpreter_ends_cleanly_while_native_code_compiles() -> None:
    done = run_program("""
        from specgrammar.protocols.grammar import GrammarSpec
        from tests.toys import backend
        service = CompileService(backend("xgrammar"))
        for i in range(4):
            service.submit(GrammarSpec.regex("(.{1,20} ){1,%d}" % (8 + i)))
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_compiles_with_a_child_of_its_own() -> None:
    done = run_program("""
        service = CompileService(TriedCompiler(), timeout_s=600)
        service.submit(spec("a")).result()
        under_way = service.submit(spec("sleep"))
        while not any(process._deadline for process in service._trials):
            pass
        own = {process.pid for process in service._trials if process.pid}
        child = os.fork()
        if not child:
            try:
                under_way.result()
            except Exception as error:
                assert "the process was forked meanwhile" in str(error)
            assert service.submit(spec("a")).done()
            assert service.submit(spec("b")).result()
            theirs = {process.pid for process in service._trials if process.pid}
            service.close()
            os._exit(not (len(theirs) == 1 and not own & theirs))
        assert os.waitpid(child, 0)[1] == 0
        assert own == {process.pid for process in service._trials if process.pid}
        assert service.submit(spec("c")).result()
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system for its processes")
def test_a_child_outlives_its_parent_by_the_time_limit_at_most() -> None:
    """Also where the parent is killed and native code holds the child's GIL."""
    done = run_program("""
        import signal, time
        service = CompileService(TriedCompiler(), timeout_s=1)
        service.submit(spec("a")).result()
        service.submit(spec("hang"))
        while not any(process._deadline for process in service._trials):
            pass
        time.sleep(0.2)
        print([process.pid for process in service._trials if process.pid][0], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.returncode == -9
    until(lambda: is_gone_or_zombie(int(done.stdout)))


def is_gone_or_zombie(pid: int) -> bool:
    """A container's first process may never collect the orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
