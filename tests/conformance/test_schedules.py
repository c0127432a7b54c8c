"""`listed_schedules`: property tests find what a schedule can break, and show few choices of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import Phase, find, given, settings

from specgrammar.errors import ConformanceError
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.testing import TOY_WORLD, Schedule, listed_schedules
from specgrammar.testing.checks.base import Story, telling
from specgrammar.testing.runs import running
from specgrammar.testing.schedules import Choose, Listed, delays
from tests.conformance.broken.workers import WORKERS

NGRAM = partial(NgramAlgorithm, num_draft_tokens=5, min_match=1)


def play(make: Callable[[], SpecAlgorithm], choose: Choose, story: Story) -> None:
    with telling(story), running(make, TOY_WORLD, delays(choose)) as run:
        schedule = Schedule(
            run.engine, TOY_WORLD.requests, TOY_WORLD.alone, choose, tell=story.tell, show=TOY_WORLD.show
        )
        schedule.run()
        schedule.check_outputs()


@given(listed_schedules())
@settings(max_examples=60)
def test_no_schedule_changes_an_output(choose: Listed) -> None:
    play(NGRAM, choose, Story())


@pytest.mark.parametrize("fault", ["loses what was preempted", "keeps what it knows by row"])
def test_a_planted_fault_is_found_and_cut_to_few_choices(fault: str) -> None:
    (broken,) = (broken for broken in WORKERS if broken.fault == fault)

    def fails(choose: Listed) -> bool:
        try:
            play(broken.make, choose, Story())
        except ConformanceError:
            return True
        return False

    found = find(
        listed_schedules(),
        fails,
        settings=settings(
            max_examples=400, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink]
        ),
    )
    story = Story()
    with pytest.raises(ConformanceError):
        play(broken.make, Listed(found.numbers), story)
    assert len(story) <= 12, story
