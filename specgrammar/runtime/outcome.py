"""What a piece of launched work returned or raised, and who is told that it ran."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.staging import WorkObserver

T = TypeVar("T")


class Outcome(Generic[T]):
    """Runs work and keeps what it returned or raised, and nothing else of it.

    It is the `Launched` of a device on which work is done when `launch` returns.
    """

    def __init__(self, work: Callable[[], T], catch: type[BaseException] = Exception) -> None:
        """Run it now; what it raises of `catch` is kept."""
        self._result: T | None = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        try:
            self._result = work()
        except catch as error:
            self._error, self._traceback = error, error.__traceback__

    def value(self) -> T:
        """What it returned; raises what it raised."""
        if self._error is not None:
            # As it was: each raise adds the frames that it passes, and an error may be asked for often.
            raise self._error.with_traceback(self._traceback)
        return self._result  # type: ignore[return-value]  # None only where that is what the work returns

    def wait(self) -> T:
        """Nothing to wait for."""
        return self.value()

    def done(self) -> bool:
        """Always."""
        return True


def read_too_early(label: str) -> SpecGrammarError:
    """The error for a value that the host asks for before the work is done."""
    what = repr(label) if label else "launched work"
    return SpecGrammarError(
        f"the value of {what} was read before it was done; wait() for it, or read it in work that is launched "
        "behind it"
    )


def observed(work: Callable[[], T], label: str, observer: WorkObserver | None) -> Callable[[], T]:
    """The same work; the observer is told when it ran, also where it raises, before anybody sees it done."""
    if observer is None or not label:
        return work

    def timed() -> T:
        begin = time.perf_counter()
        try:
            return work()
        finally:
            observer(label, begin, time.perf_counter())

    return timed
