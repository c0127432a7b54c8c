"""The smallest failing run that a few seconds find, of runs that cost too much for hypothesis to shrink.

A run is a list of numbers: those of requests, or the choices of a schedule, which are zeros behind the list's
end. One that fails is made smaller as long as the same line fails and its story gets shorter.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from specgrammar.errors import ConformanceError
from specgrammar.testing.checks import base
from specgrammar.testing.checks.base import CheckSkipped, Story, telling
from specgrammar.testing.schedules import Choose, Listed, Seeded

SHRINK_TIME_S = 2.0
"""For how long a run that fails is made smaller; one that has begun by then is played to its end."""

Numbers = tuple[int, ...]


def grow(num: int, play: _Play) -> None:
    """Play so many schedules, always the same ones, from small to large; the first that fails is reported.

    Args:
        num: how many.
        play: is given what draws the schedule, who is told, and how large it may be, in (0, 1].

    Raises ConformanceError whose `example` is the story of the smallest failure that was found.
    """
    sizes = [number / num for number in range(1, num + 1)]
    for number, size in enumerate(sizes):
        found = _played(play, size, Seeded(number))
        if found is not None:
            search = _Search(found)
            fewer = (one for one in sizes[:number] if search.tries(_replayed, play, one, found.numbers))
            again = partial(_replayed, play, next(fewer, size))
            search.shorten(again, (_without, _zeroed, _counted_down, _halved, _lowered))
            raise search.best.error


def fewest(numbers: Sequence[int], play: Callable[[Sequence[int], Story], None]) -> None:
    """Play requests together; what fails is reported with as few of them as are found to fail alike.

    Args:
        numbers: of the requests.
        play: is given some of the numbers, and who is told; any of them have to keep the contract.

    Raises ConformanceError whose `example` is the story of the smallest failure that was found.
    """

    def failure(some: Numbers) -> _Failure | None:
        return _failure(lambda story: play(some, story), lambda: some)

    found = failure(tuple(numbers))
    if found is not None:
        search = _Search(found)
        search.shorten(failure, (_without,))
        raise search.best.error


@dataclass(frozen=True)
class _Failure:
    """A run that failed: what makes it again, and what was raised."""

    numbers: Numbers
    error: ConformanceError

    @property
    def place(self) -> tuple[object, ...]:
        """Where it was raised: by that failures are told apart."""
        raised = self.error.__cause__ or self.error
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(raised.__traceback__)]
        return type(raised), [frame for frame in frames if frame[0] != base.__file__][-1:]

    @property
    def cost(self) -> tuple[int, ...]:
        """Of two failures people rather read the one that has less of it."""
        story = self.error.example
        return len(story), sum(map(len, story)), len(self.numbers), sum(self.numbers)


_Play = Callable[[Choose, Story, float], None]


def _played(play: _Play, size: float, choose: Seeded | Listed) -> _Failure | None:
    return _failure(lambda story: play(choose, story, size), lambda: _stripped(choose.chosen))


def _replayed(play: _Play, size: float, numbers: Numbers) -> _Failure | None:
    return _played(play, size, Listed(numbers))


def _failure(run: Callable[[Story], None], numbers: Callable[[], Numbers]) -> _Failure | None:
    """What a run fails with; None where it fails with nothing, or skips what only its size lets it do."""
    story = Story()
    try:
        with telling(story):
            run(story)
    except ConformanceError as error:
        return _Failure(numbers(), error)
    return None


class _Search:
    """Smaller and smaller failures, until time is up."""

    def __init__(self, found: _Failure) -> None:
        self.best = found
        self._end = time.perf_counter() + SHRINK_TIME_S

    def tries(self, run: Callable[..., _Failure | None], *args: object) -> bool:
        """Whether a run fails in the same line, and with less to read; if so, it is the best one."""
        if time.perf_counter() > self._end:
            return False
        try:
            found = run(*args)
        except CheckSkipped:
            return False
        if found is None or found.place != self.best.place or found.cost >= self.best.cost:
            return False
        self.best = found
        return True

    def shorten(self, run: Callable[[Numbers], _Failure | None], edits: Sequence[_Edit]) -> None:
        """Edit ever smaller blocks of the numbers, again and again until that is of no more use."""
        before = None
        while before is not self.best:
            before = self.best
            self._shorten_once(run, edits)

    def _shorten_once(self, run: Callable[[Numbers], _Failure | None], edits: Sequence[_Edit]) -> None:
        """Each edit that is of use is tried again in its place."""
        block = len(self.best.numbers)
        while block:
            start = 0
            while start < len(self.best.numbers):
                edited = {edit(self.best.numbers, start, block): None for edit in edits}
                edited.pop(self.best.numbers, None)
                if not any(self.tries(run, numbers) for numbers in edited):
                    start += block
            block //= 2


_Edit = Callable[[Numbers, int, int], Numbers]


def _without(numbers: Numbers, start: int, block: int) -> Numbers:
    return numbers[:start] + numbers[start + block :]


def _counted_down(numbers: Numbers, start: int, block: int) -> Numbers:
    """A number says how many follow it: of both, so many less."""
    if numbers[start] < block:
        return numbers
    return (*numbers[:start], numbers[start] - block, *numbers[start + 1 + block :])


def _mapped(change: Callable[[int], int], numbers: Numbers, start: int, block: int) -> Numbers:
    end = start + block
    return numbers[:start] + tuple(map(change, numbers[start:end])) + numbers[end:]


_zeroed: _Edit = partial(_mapped, lambda _: 0)
_halved: _Edit = partial(_mapped, lambda number: number // 2)
_lowered: _Edit = partial(_mapped, lambda number: max(0, number - 1))


def _stripped(numbers: Sequence[int]) -> Numbers:
    """Without the zeros at the end, which come by themselves."""
    end = next((i for i in range(len(numbers), 0, -1) if numbers[i - 1]), 0)
    return tuple(numbers[:end])
