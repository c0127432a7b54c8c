"""Whatever a plugin does, each check has an outcome: nothing that it raises gets past the report."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import FunctionType
from typing import Any
from unittest import SkipTest

import pytest

from specgrammar.errors import ConfigError, GrammarCompileError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.checks.base import Checks
from specgrammar.testing.checks.report import Outcome, run_checks
from specgrammar.testing.reference import ReferenceBackend
from tests.conformance.broken.rejected import BACKEND_LISTS


class PanicError(BaseException):
    """As the panics of native code that PyO3 binds, it is no Exception."""


class Raises(ReferenceBackend):
    error: BaseException

    def compile(self, spec: GrammarSpec) -> Any:
        self.refused = spec
        raise self.error


class RaisesAtTheStart(ReferenceBackend):
    def __init__(self, _: object) -> None:
        raise RuntimeError("no such library")


class CompilesNothing(ReferenceBackend):
    facts = replace(ReferenceBackend.facts, kinds=frozenset(), grammar_syntaxes=frozenset())


def outcomes(make: Any, checks: Checks, **given: Any) -> dict[str, Outcome]:
    return {outcome.check: outcome for outcome in run_checks(checks, make, **given)}


@pytest.mark.parametrize("checks", BACKEND_LISTS, ids=lambda checks: checks.protocol)
@pytest.mark.parametrize(
    "error",
    [SystemExit(0), PanicError("a panic"), KeyboardInterrupt(), GrammarCompileError("no"), RecursionError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_compile_raises_is_told(checks: Checks, error: BaseException) -> None:
    found = outcomes(type("Raising", (Raises,), {"error": error}), checks)
    assert list(found) == [check.__name__ for check in checks]
    for name in ("check_rollback_equals_replay", "check_bits_are_what_accept_takes"):
        if name in found:
            assert found[name].verdict == "broken"
            assert type(error).__name__ in found[name].reason


@pytest.mark.parametrize("checks", BACKEND_LISTS, ids=lambda checks: checks.protocol)
@pytest.mark.parametrize("make", [RaisesAtTheStart, CompilesNothing])
def test_a_backend_of_no_use_is_rejected_by_all_that_use_it(make: Any, checks: Checks) -> None:
    found = outcomes(make, checks)
    assert list(found) == [check.__name__ for check in checks]
    assert any(outcome.verdict == "broken" for outcome in found.values())


def test_a_backend_that_refuses_all_grammars_is_not_equal_to_the_reference() -> None:
    make = type("Refusing", (Raises,), {"error": GrammarCompileError("no")})
    found = outcomes(make, BACKEND_LISTS[2], only=["check_it_equals_the_reference"])
    assert "no grammar compiles" in found["check_it_equals_the_reference"].reason


def test_where_checks_hang_the_rest_is_not_waited_for() -> None:
    def waits(_: object) -> None:
        threading.Event().wait()

    checks = Checks("waiting")
    for number in range(4):
        check = FunctionType(waits.__code__, waits.__globals__, f"check_{number}")
        checks.add(invariant=9)(check)
    found = list(outcomes(None, checks, timeout_s=0.2).values())
    assert [outcome.verdict for outcome in found] == ["broken", "broken", "skipped", "skipped"]
    assert "did not come back within 0.2 s; it is in threading, line" in found[0].reason
    assert found[3].reason == "not tried, as check_0 and check_1 did not come back"


def test_a_plugin_cannot_skip_its_checks() -> None:
    found = outcomes(type("Skipping", (Raises,), {"error": SkipTest("not today")}), BACKEND_LISTS[0])
    assert found["check_rollback_equals_replay"].verdict == "broken"
    assert "SkipTest: not today" in found["check_rollback_equals_replay"].reason


def test_a_check_that_is_not_there_is_no_check_that_passes() -> None:
    with pytest.raises(ConfigError, match="there is no matcher check 'check_rollback'; there are check_"):
        list(run_checks(BACKEND_LISTS[0], ReferenceBackend, only=["check_rollback"]))
