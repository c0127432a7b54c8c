"""Run a list of checks on a plugin and say what came of each."""

from __future__ import annotations

import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from specgrammar.errors import ConfigError, ConformanceError
from specgrammar.testing.checks.base import INVARIANTS, Check, Checks, CheckSkipped, Story, telling
from specgrammar.testing.checks.places import place_of

CHECK_TIMEOUT_S = 60.0
"""How long one check may take: a plugin that hangs is reported, not waited for."""

_MOST_LINES = 40
"""Of an example, in a report for people."""

_MOST_HUNG = 2
"""After so many checks of a list that did not come back the others are not tried."""


@dataclass(frozen=True)
class Outcome:
    """What one check found.

    Attributes:
        protocol: whose contract it is.
        check: the check's name.
        invariant: the number of the invariant that it is about.
        contract: the clause that it checks.
        verdict: `kept`, `broken`, or `skipped` where it does not apply.
        reason: what was found, or why it was skipped; empty where the contract was kept.
        example: the smallest example of what was found, line by line.
        seconds: how long it took.
    """

    protocol: str
    check: str
    invariant: int
    contract: str
    verdict: Literal["kept", "broken", "skipped"]
    reason: str
    example: tuple[str, ...]
    seconds: float

    def text(self) -> str:
        """For people: a line, and what broke below it, with the middle of a long example left out."""
        words = {"kept": "ok", "broken": "BROKEN", "skipped": "skipped"}
        line = f"{words[self.verdict]:7} {self.protocol}: {self.check} ({self.seconds:.1f} s)"
        if self.verdict == "kept":
            return line
        if self.verdict == "skipped":
            return f"{line}: {self.reason}"
        lines = [
            line,
            f"  invariant {self.invariant}: {INVARIANTS[self.invariant]}",
            f"  contract: {self.contract}",
            f"  found: {self.reason}",
        ]
        if self.example:
            lines += ["  smallest example:", *(f"    {told}" for told in _shown(self.example))]
        return "\n".join(lines)


def _shown(example: Sequence[str]) -> list[str]:
    """How it begins and how it ends."""
    if len(example) <= _MOST_LINES:
        return [*example]
    head = _MOST_LINES // 2
    tail = _MOST_LINES - head - 1
    num_left_out = len(example) - head - tail
    return [
        *example[:head],
        f"... {num_left_out} lines left out; `--output json` and `Outcome.example` have them ...",
        *example[-tail:],
    ]


def run_checks(
    checks: Checks, make: Any, *, timeout_s: float = CHECK_TIMEOUT_S, only: Sequence[str] = (), **given: Any
) -> Iterator[Outcome]:
    """Run checks one by one; outcomes come as they are known.

    Args:
        checks: a protocol's list.
        make: the factory that the list's checks take.
        timeout_s: a check that takes longer counts as broken; its thread is left behind. Behind two of them the
            rest of the list is skipped.
        only: names of the checks to run; empty runs all.
        given: what else the checks take.

    Raises ConfigError for a name in `only` that no check of the list has.
    """
    refuse_unknown(only, [checks])
    hung: list[str] = []
    for check in checks:
        if only and check.__name__ not in only:
            continue
        begin = time.perf_counter()
        if len(hung) < _MOST_HUNG:
            verdict, reason, example = _within(timeout_s, check, make, given, hung)
        else:
            verdict, reason, example = "skipped", f"not tried, as {' and '.join(hung)} did not come back", ()
        yield Outcome(
            checks.protocol,
            check.__name__,
            checks.invariants[check.__name__],
            clause(check),
            verdict,
            reason,
            example,
            time.perf_counter() - begin,
        )


def refuse_unknown(only: Sequence[str], lists: Sequence[Checks]) -> None:
    """Raise ConfigError for a name that no check of the lists has, and say which ones look like it."""
    known = [check.__name__ for checks in lists for check in checks]
    for name in sorted(set(only) - set(known)):
        words = "_".join(re.findall("[a-z0-9]+", name.lower())).removeprefix("check_")
        alike = get_close_matches(f"check_{words}", known)
        hint = (
            f"did you mean {' or '.join(alike)}?" if alike else "`specgrammar check KIND NAME --list` has them"
        )
        kinds = ", ".join(checks.protocol for checks in lists)
        raise ConfigError(f"there is no check {name!r} of {kinds}; {hint}")


def clause(check: Check) -> str:
    """The clause that a check checks: the first paragraph of its docstring, on one line."""
    return " ".join((check.__doc__ or "").strip().split("\n\n")[0].split())


_Found = tuple[Literal["kept", "broken", "skipped"], str, tuple[str, ...]]


def _within(timeout_s: float, check: Check, make: Any, given: dict[str, Any], hung: list[str]) -> _Found:
    """What a check finds; raises what is no plugin's fault but the check's.

    The name of a check that does not come back is added to `hung`.
    In a thread of its own nobody but a plugin raises KeyboardInterrupt: a user's reaches the main thread.
    """
    done: Future[_Found] = Future()

    def run() -> None:
        try:
            done.set_result(_run(check, make, given))
        except KeyboardInterrupt:
            done.set_result(("broken", "raised KeyboardInterrupt, as if the user had stopped it", ()))
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name=check.__name__, daemon=True)
    thread.start()
    try:
        return done.result(timeout_s)
    except TimeoutError:
        hung.append(check.__name__)
        return "broken", f"did not come back within {timeout_s:g} s{_place_of(thread)}", ()


def _place_of(thread: threading.Thread) -> str:
    """Where a thread is, for people; empty if it has just ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    place = place_of([*traceback.walk_stack(frame)][::-1]) if frame is not None else ""
    return f"; it is at {place}" if place else ""


def _run(check: Check, make: Any, given: dict[str, Any]) -> _Found:
    try:
        with telling(Story()):
            check(make, **given)
    except CheckSkipped as skipped:
        return "skipped", str(skipped), ()
    except ConformanceError as error:
        return "broken", error.message, error.example
    return "kept", "", ()
