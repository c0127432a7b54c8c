"""Whatever a plugin does, each check has an outcome: nothing that it raises gets past the report."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any
from unittest import SkipTest

import pytest

from specgrammar.errors import ConfigError, GrammarCompileError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.checks.base import Checks
from specgrammar.testing.checks.report import Outcome, run_checks
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from tests.conformance.broken.rejected import BACKEND_LISTS, backend_of


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
    assert re.search(
        r"within 0.2 s; it is at tests/conformance/test_report.py:\d+, in .*waits$", found[0].reason
    )
    assert found[3].reason == "not tried, as check_0 and check_1 did not come back"


def test_a_plugin_cannot_skip_its_checks() -> None:
    found = outcomes(type("Skipping", (Raises,), {"error": SkipTest("not today")}), BACKEND_LISTS[0])
    assert found["check_rollback_equals_replay"].verdict == "broken"
    assert "SkipTest: not today" in found["check_rollback_equals_replay"].reason


def test_a_check_that_is_not_there_is_no_check_that_passes() -> None:
    with pytest.raises(ConfigError, match=r"there is no check 'check_it' of matcher; .* --list` has them"):
        list(run_checks(BACKEND_LISTS[0], ReferenceBackend, only=["check_it"]))


@pytest.mark.parametrize(
    "name",
    [
        "check_rollback_equals_reply",
        "rollback_equals_replay",
        "rollback equals replay",
        "check-rollback-equals-replay",
        "Rollback_equals",
    ],
)
def test_a_name_that_is_almost_right_is_told_the_right_one(name: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean check_rollback_equals_replay\b"):
        list(run_checks(BACKEND_LISTS[0], ReferenceBackend, only=[name]))


def outcome(example: int) -> Outcome:
    lines = tuple(f"line {i}" for i in range(example))
    return Outcome("worker", "check_it", 6, "It is so.", "broken", "it is not", lines, 0.1)


def test_a_report_prints_the_name_that_only_takes() -> None:
    assert outcome(0).text().startswith("BROKEN  worker: check_it (0.1 s)\n")


def test_the_middle_of_a_long_example_is_left_out() -> None:
    assert outcome(40).text().splitlines()[5:] == [f"    line {i}" for i in range(40)]
    shown = outcome(300).text().splitlines()[5:]
    assert len(shown) == 40
    assert shown[:20] == [f"    line {i}" for i in range(20)]
    assert shown[20].startswith("    ... 261 lines left out; ")
    assert shown[21:] == [f"    line {i}" for i in range(281, 300)]


class Fails(Sequence[int]):
    """Iterates in the standard library's code, and fails in its own."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: object) -> Any:
        raise LookupError(index)


class FailsInside(ReferenceBackend):
    """What it calls is ours and the standard library's, what it raises its own."""

    def compile(self, spec: GrammarSpec) -> Any:
        return super().compile(spec), list(reversed(Fails()))


class FailsInLibraries(ReferenceBackend):
    def compile(self, spec: GrammarSpec) -> Any:
        return super().compile(spec), json.loads("{")


def test_the_place_of_an_error_is_in_the_plugin() -> None:
    lists = {"check_rollback_equals_replay": BACKEND_LISTS[0]}
    for make, place in ((FailsInside, "Fails.__getitem__"), (FailsInLibraries, "FailsInLibraries.compile")):
        for name, checks in lists.items():
            reason = outcomes(make, checks, only=[name])[name].reason
            assert re.search(rf" \(tests/conformance/test_report.py:\d+, in {place}\)$", reason), reason


def test_an_error_of_another_kind_than_expected_is_placed_too() -> None:
    name = "check_what_is_not_declared_is_refused"
    make = type(
        "Some", (FailsInLibraries,), {"facts": replace(ReferenceBackend.facts, kinds=frozenset({"regex"}))}
    )
    reason = outcomes(make, BACKEND_LISTS[2], only=[name])[name].reason
    assert re.search(
        r"JSONDecodeError: .*test_report.py:\d+, in FailsInLibraries.compile\); expected Gr", reason
    )


class TakesTwo(ReferenceMatcher):
    """Accepts what has no bit: id 14."""

    def accept(self, token: int) -> bool:
        return token == 14 or super().accept(token)


def test_the_call_that_fails_is_the_last_of_the_example() -> None:
    name = "check_bits_are_what_accept_takes"
    found = outcomes(backend_of(TakesTwo), BACKEND_LISTS[1], only=[name])[name]
    assert "is taken, but it has no bit" in found.reason
    assert [line.split()[0] for line in found.example] == ["compile", "accept"]
    assert found.example[-1].removeprefix("accept ") in found.reason
