"""Whatever happens to an engine, and however late its device is, every request's output is what it is alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.testing.schedules import Seeded
from tests.overlap.schedules import ALGORITHMS, POLICIES, run_schedule
from tests.toys import BACKEND_NAMES

NUM_SCHEDULES = 2_000


def test_no_schedule_changes_an_output() -> None:
    """A failure names the seed; `run_schedule(Seeded(seed))` plays its schedule again."""
    schedules: set[tuple[int, ...]] = set()
    counts: Counter[str] = Counter()
    for seed in range(NUM_SCHEDULES):
        choose = Seeded(seed)
        try:
            counts += run_schedule(choose)
        except Exception as error:
            raise AssertionError(f"schedule {seed}: {type(error).__name__}: {error}") from error
        schedules.add(tuple(choose.chosen))
    assert len(schedules) >= 2_000
    for part in (*ALGORITHMS, *POLICIES, *BACKEND_NAMES):
        assert counts[part] >= 300, (part, counts)
    for event in (
        "mixed",
        "together",
        "preempted",
        "resumed",
        "aborted",
        "late drafts",
        "stale drafts",
        "overlapped",
    ):
        assert counts[event] >= 250, (event, counts)
    for event in ("aborted while away", "refused"):
        assert counts[event] >= 10, (event, counts)


@given(st.data())
@settings(max_examples=150)
def test_no_schedule_that_hypothesis_finds_changes_an_output(data: st.DataObject) -> None:
    """The same with numbers that shrink to a short schedule."""
    run_schedule(lambda n: data.draw(st.integers(0, n - 1)))
