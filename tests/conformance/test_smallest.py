"""The smallest failing run: fewer numbers, smaller ones, the same fault, within its time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from specgrammar.errors import ConformanceError
from specgrammar.testing.checks import base, smallest
from specgrammar.testing.checks.base import CheckSkipped, Draw, Story, expect, explore
from specgrammar.testing.checks.smallest import fewest, grow
from specgrammar.testing.schedules import Choose, Listed


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the search comes to its end."""
    monkeypatch.setattr(smallest, "SHRINK_TIME_S", 60.0)


def stories(play: object, *args: object) -> tuple[str, ...]:
    with pytest.raises(ConformanceError) as caught:
        play(*args)  # type: ignore[operator]
    return caught.value.example


def three_behind_seven(choose: Choose, story: Story, size: float) -> None:
    seen = list[int]()
    for _ in range(round(200 * size)):
        seen.append(choose(100))
        if seen[-1]:
            story.tell(str(seen[-1]))
        expect(not (seen[-1] == 3 and any(70 <= number < 80 for number in seen)), "3 behind 7.")


@pytest.mark.usefixtures("patient")
def test_a_schedule_is_cut_to_what_fails() -> None:
    assert stories(grow, 4, three_behind_seven) == ("70", "3")


@pytest.mark.usefixtures("patient")
def test_what_a_number_counts_goes_with_it() -> None:
    def play(choose: Choose, story: Story, size: float) -> None:
        for _ in range(round(20 * size)):
            prompt = [choose(5) for _ in range(1 + choose(8))]
            story.tell(f"prompt {prompt}")
            event = choose(1000)
            expect(event % 7 != 3, "an event of its own")

    assert stories(grow, 20, play) == ("prompt [0]",)


def test_time_that_is_up_leaves_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallest, "SHRINK_TIME_S", -1.0)
    assert len(stories(grow, 4, three_behind_seven)) > 10


@pytest.mark.usefixtures("patient")
def test_requests_that_do_not_matter_are_left_out() -> None:
    def play(numbers: Sequence[int], story: Story) -> None:
        for number in numbers:
            story.tell(str(number))
        expect(not {17, 33} <= set(numbers), "17 and 33 do not get along")

    assert stories(fewest, range(40), play) == ("17", "33")


@pytest.mark.usefixtures("patient")
def test_another_fault_does_not_take_the_place_of_the_one_that_was_found() -> None:
    def play(numbers: Sequence[int], story: Story) -> None:
        story.tell(f"{len(numbers)} requests")
        if len(numbers) < 5:
            raise CheckSkipped("too few")
        expect(len(numbers) >= 10, "fewer than ten")
        raise ZeroDivisionError(len(numbers))

    with pytest.raises(ConformanceError, match="ZeroDivisionError: 10") as caught:
        fewest(range(40), play)
    assert caught.value.example == ("10 requests",)


def test_a_slow_failure_is_told_before_its_check_counts_as_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    played = list[list[int]]()

    def play(draw: Draw, story: Story) -> None:
        numbers = draw(st.lists(st.integers(0, 1000), max_size=30))
        for number in numbers:
            story.tell(str(number))
        if sum(number > 0 for number in numbers) >= 3:
            played.append(numbers)
            raise ConformanceError("too many")

    assert stories(explore, play) == ("1", "1", "1")
    monkeypatch.setattr(base, "PATIENCE_S", -1.0)
    played.clear()
    impatient = stories(explore, play)
    assert [tuple(map(str, numbers)) for numbers in played] == [impatient] != [("1", "1", "1")]
    assert stories(explore, play) == impatient, "the same in every run"


def test_what_keeps_the_contract_is_played_once() -> None:
    sizes, seen = list[float](), list[int]()
    grow(4, lambda *played: sizes.append(played[-1]))
    fewest(range(3), lambda numbers, _: seen.extend(numbers))
    assert (sizes, seen) == ([0.25, 0.5, 0.75, 1.0], [0, 1, 2])


def test_listed_numbers_fit_what_is_chosen_from_and_end_in_zeros() -> None:
    choose = Listed([5, 13])
    assert [choose(n) for n in (10, 10, 10)] == choose.chosen == [5, 3, 0]
    assert repr(choose) == "Listed([5, 13])"
