"""What a conformance check is: a plain function of a factory, which raises where the contract is broken.

    @MATCHER_CHECKS.add(invariant=1)
    def check_rollback_equals_replay(make: MakeBackend) -> None:
        \"\"\"The state after `rollback` equals a fresh replay of what remains.\"\"\"

The docstring's first paragraph is the contract's clause, as a report quotes it. A check that does not apply to
what a plugin declares raises `CheckSkipped` with the reason, which pytest shows as skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, HypothesisException, StopTest

from specgrammar.errors import ConformanceError
from specgrammar.testing.checks.places import raised_at

T = TypeVar("T")
Check = Callable[..., None]
C = TypeVar("C", bound=Check)

INVARIANTS = {
    1: "the state after a rollback equals a fresh replay; the stop token is one step",
    2: "a tree build leaves every matcher as it found it, also when a fill raises half-way",
    3: "each row belongs to a (request, node)",
    4: "a row says for itself what it is; nothing fails open, a dead node is never accepted",
    5: "masks are per ancestry; a chain is the degenerate tree and gives the same bits",
    6: "the grammar advances once per (request, step), over exactly the committed prefix",
    7: "a draft or a result carries the step that it was made for; a stale one is dropped",
    8: "host memory is not read before its copy is done, nor reused before its upload is done",
    9: "one request's failure ends that request, with its reason; the batch goes on",
    10: "what cannot work is refused when it is configured, not in the decode loop",
    11: "same seed: speculative output has the law of ordinary decoding; greedy output is equal",
    12: "ids outside the vocabulary, padding ids and padded columns never reach a backend",
    13: "replicas decide alike",
}
"""The invariants of docs/architecture.md, by their numbers there."""


class CheckSkipped(SkipTest):  # as unittest's and pytest's are named
    """A check does not apply to what a plugin declares. A `SkipTest` of a plugin's own is no way out."""


_SLOW_IS_FINE = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)


_PHASES = (Phase.generate, Phase.shrink)
"""Without `explain`, which traces every line to colour an account of the draws that nobody sees."""


PATIENCE_S = 20.0
"""For how long a failure is made smaller: a slow plugin's has to be told before its check counts as hanging."""


class _TimeIsUpError(KeyboardInterrupt):
    """Ends hypothesis' search: what a user stops it with gets through, and all else is a failure to it."""


class Checks(list[Check]):
    """The checks of one protocol, in the order in which they are best read.

    Attributes:
        protocol: what they check: `matcher`, `backend`, ...
        invariants: the invariant that each check is about, by the check's name.
    """

    def __init__(self, protocol: str) -> None:
        """No checks yet."""
        super().__init__()
        self.protocol = protocol
        self.invariants: dict[str, int] = {}

    def add(self, *, invariant: int) -> Callable[[C], C]:
        """A decorator that puts a check into the list; `invariant` is a key of `INVARIANTS`."""
        if invariant not in INVARIANTS:
            raise ConformanceError(f"there is no invariant {invariant}; known: {sorted(INVARIANTS)}")

        def added(check: C) -> C:
            self.append(check)
            self.invariants[check.__name__] = invariant
            return check

        return added


class Draw(Protocol):
    """Draws from a strategy; what it drew shrinks."""

    def __call__(self, strategy: st.SearchStrategy[T], /) -> T:
        """A value of the strategy's."""
        ...


class Story(list[str]):
    """What a check did, line by line: the example that a report shows."""

    def tell(self, line: str) -> None:
        """One more thing was done."""
        self.append(line)

    @contextmanager
    def trying(self, line: str) -> Iterator[None]:
        """One more thing is tried; it is told only if that fails, so that of many alike one is told."""
        self.append(line)
        yield
        self.pop()


def expect(condition: object, message: str) -> None:
    """Raise ConformanceError with `message` unless `condition` is true."""
    if not condition:
        raise ConformanceError(message)


def same(what: str, found: object, expected: object) -> None:
    """Raise ConformanceError unless two values are equal."""
    expect(found == expected, f"{what} is {found}; expected {expected}")


@contextmanager
def expect_raise(kind: type[Exception], what: str) -> Iterator[None]:
    """Raise ConformanceError unless `kind` is raised inside; `what` says what was done."""
    try:
        yield
    except kind:
        return
    except Exception as error:
        raise ConformanceError(f"{what} raised {_told(error)}; expected {kind.__name__}") from error
    raise ConformanceError(f"{what} raised nothing; expected {kind.__name__}")


def explore(play: Callable[[Draw, Story], None], max_examples: int = 100) -> None:
    """Play many drawn examples, always the same ones, and report the smallest that fails.

    Args:
        play: draws an example, tells what it does, and raises where the contract is broken. Whatever a plugin
            raises out of it is a broken contract, too.
        max_examples: how many to play.

    Raises ConformanceError whose `example` is the story of the smallest failure, as far as `PATIENCE_S` goes.
    """
    failures, begin = list[ConformanceError](), 0.0

    @settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=_SLOW_IS_FINE,
        phases=_PHASES,
    )
    @given(data=st.data())
    def played(data: st.DataObject) -> None:
        nonlocal begin
        if failures and time.perf_counter() - begin > PATIENCE_S:
            raise _TimeIsUpError
        story, found = Story(), None
        try:
            with telling(story):
                play(lambda strategy: data.draw(strategy), story)
        except ConformanceError as error:
            found = error
        if found is not None:
            begin = begin if failures else time.perf_counter()
            failures.append(found)
            # Raised anew, in one line and without a context, by which hypothesis would tell failures apart.
            raise ConformanceError(found.message, found.example)

    try:
        played()
    except ConformanceError as error:
        error.__notes__ = []  # hypothesis's own account of the draws: the story says it better
        raise
    except _TimeIsUpError:
        found = min(failures, key=lambda error: (len(error.example), sum(map(len, error.example))))
        raise ConformanceError(found.message, found.example) from None
    except Flaky as error:
        raise ConformanceError(f"the same calls do not give the same twice: {error}") from error


@contextmanager
def telling(story: Story) -> Iterator[None]:
    """What is raised inside becomes a ConformanceError that carries the story so far."""
    try:
        yield
    except (CheckSkipped, HypothesisException, StopTest, KeyboardInterrupt, GeneratorExit):
        raise
    except ConformanceError as error:
        error.example = error.example or tuple(story)
        raise
    except BaseException as error:  # `sys.exit` and a panic of native code are no Exception
        raise ConformanceError(f"raised {_told(error)}", tuple(story)) from error


def _told(error: BaseException) -> str:
    """What was raised, and where in the plugin."""
    place = raised_at(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
