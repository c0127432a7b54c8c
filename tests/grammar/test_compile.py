"""Compilation under a limit: what the backend never sees, and what each failure becomes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from specgrammar.errors import ConfigError, GrammarCompileError, WeakenedSchemaError
from specgrammar.grammar.compile import MAX_TIMEOUT_S, compile_grammar
from specgrammar.protocols.grammar import GrammarSpec
from tests.grammar.compilers import FACTS
from tests.toys import backend as backend_of

SPEC = GrammarSpec.regex("a")


class Failing:
    """Stands for a native library: `compile` does what it is told."""

    facts = FACTS

    def __init__(self, failure: BaseException | threading.Event) -> None:
        self.failure = failure
        self.calls = 0

    def compile(self, spec: GrammarSpec) -> GrammarSpec:
        self.calls += 1
        if isinstance(self.failure, BaseException):
            raise self.failure
        self.failure.wait(60)
        return spec


def backend_that(failure: BaseException | threading.Event) -> Any:
    return Failing(failure)


@pytest.mark.parametrize(
    "timeout_s", [0, -1, float("nan"), float("inf"), 10**400, MAX_TIMEOUT_S + 1, True, "3", None]
)
def test_an_impossible_limit_is_refused_before_the_backend_is_called(timeout_s: Any) -> None:
    backend = backend_that(RuntimeError())
    with pytest.raises(ConfigError, match=r"^compile: timeout_s = "):
        compile_grammar(backend, SPEC, timeout_s=timeout_s)
    assert backend.calls == 0


def test_what_a_backend_compiled_is_returned_also_under_the_longest_limit() -> None:
    compiled = compile_grammar(backend_of("llguidance"), SPEC, timeout_s=MAX_TIMEOUT_S)
    assert compiled.spec == SPEC


def test_a_source_that_no_backend_could_take_does_not_reach_it() -> None:
    backend = backend_that(RuntimeError())
    for source in ("a\0", "\ud800", "a" * (1 << 20) + "a"):
        with pytest.raises(GrammarCompileError, match=r"^regex: "):
            compile_grammar(backend, GrammarSpec.regex(source))
    assert backend.calls == 0


def test_one_that_takes_too_long_is_left_behind() -> None:
    release = threading.Event()
    with pytest.raises(GrammarCompileError, match=r"regex: not compiled within 0\.01 s"):
        compile_grammar(backend_that(release), SPEC, timeout_s=0.01)
    release.set()


@pytest.mark.parametrize(
    "failure", [ValueError("no\n  such thing"), MemoryError("no\nsuch thing"), SystemExit("no such thing")]
)
def test_whatever_a_backend_raises_is_one_line(failure: BaseException) -> None:
    with pytest.raises(GrammarCompileError, match=r"^regex: the backend failed: no such thing$") as caught:
        compile_grammar(backend_that(failure), SPEC)
    assert caught.value.__cause__ is failure


def test_its_own_refusals_stay_as_they_are() -> None:
    for failure in (GrammarCompileError("as it is"), WeakenedSchemaError("as it is")):
        with pytest.raises(type(failure), match=r"^as it is$"):
            compile_grammar(backend_that(failure), SPEC)


def test_a_system_without_threads_is_one_failed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread {thread.name}")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(GrammarCompileError, match="no thread to compile in: can't start"):
        compile_grammar(backend_that(RuntimeError()), SPEC)
