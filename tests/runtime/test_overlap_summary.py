"""What was hidden and what was exposed, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.runtime.intervals import Interval, between, by_step, common, innermost, merged, outside
from specgrammar.runtime.overlap import Overlap, how_it_overlaps, selected_steps, summarize
from specgrammar.runtime.saved import Saved
from specgrammar.runtime.timeline import Span, Timeline
from tests.runtime.timelines import regular


def summary(timeline: Timeline, selection: slice = slice(None), against: Timeline | None = None) -> Overlap:
    inline = [] if against is None else [against]
    return summarize([timeline], selected_steps(timeline, selection), inline)


def together(repeats: list[Timeline], against: Sequence[Timeline] = ()) -> Overlap:
    return summarize(repeats, selected_steps(repeats[0]), against)


def test_the_numbers_of_a_regular_run() -> None:
    overlap = summary(regular())
    assert (overlap.first_step, overlap.num_steps, overlap.num_dropped) == (0, 3, 0)
    assert overlap.step_ms == pytest.approx(10)
    assert overlap.mean_step_ms == pytest.approx(10)
    assert overlap.forward_ms == pytest.approx(7)
    assert overlap.grammar_ms_per_step == pytest.approx(3.5), "barrier 1, build 1.5, upload .5, apply .5"
    assert overlap.overlap_ms_per_step == pytest.approx(3)
    assert overlap.under_forward_ms_per_step == pytest.approx(3)
    assert overlap.device_grammar_ms_per_step == 0
    assert overlap.hidden_grammar_ms_per_step == pytest.approx(3)
    assert overlap.exposed_grammar_ms_per_step == pytest.approx(0.5)
    assert overlap.hidden_grammar_share == pytest.approx(3 / 3.5)
    assert overlap.exposed_grammar_share_of_step == pytest.approx(0.05)
    assert overlap.overlap_share_of_all_steps == pytest.approx(3 / 3.5)
    assert overlap.bubble_ms_per_step == pytest.approx(3), "from 8.5 to 11.5"
    assert not overlap.hidden_is_measured
    assert overlap.inline_step_ms is overlap.inline_forward_ms is None
    assert overlap.saved is None
    assert overlap.hidden_grammar_share_interval is None
    assert overlap.num_repeats == 1


def test_each_stage_has_its_own_time_alone() -> None:
    stages = {(s.lane, s.stage): s for s in summary(regular()).stages}
    times = {stage: value.median_ms_per_step for (_, stage), value in stages.items()}
    expected = {"propose": 1, "launch": 1, "barrier": 1, "resolve": 0.5, "build": 1.5, "upload": 0.5}
    assert times == pytest.approx(expected | {"wait": 3, "apply": 0.5, "accept": 1, "forward": 7})
    assert sum(s.mean_ms_per_step for s in stages.values() if s.lane == "host") == pytest.approx(10)
    assert stages["host", "launch"].overlap_share == pytest.approx(0.5)
    assert stages["host", "build"].overlap_share == pytest.approx(1)
    assert stages["host", "apply"].overlap_share == 0
    assert stages["device", "forward"].overlap_share is None


def test_other_work_of_the_device_is_no_bubble() -> None:
    assert summary(regular(device_drafts=True)).bubble_ms_per_step == pytest.approx(2)


@pytest.mark.parametrize(
    ("inline_pause_ms", "hidden_ms"),
    [(1, 1), (2.5, 2.5), (3, 3), (50, 3), (0, 0)],
    ids=["less than overlapped", "nearly all", "all", "more than there was", "nothing"],
)
def test_hidden_is_at_most_what_the_inline_run_was_slower_by(inline_pause_ms: float, hidden_ms: float) -> None:
    overlap = summary(regular(), against=regular(pause_ms=inline_pause_ms))
    assert overlap.hidden_is_measured
    assert overlap.overlap_ms_per_step == pytest.approx(3), "what the clock shows, as before"
    assert overlap.inline_step_ms == pytest.approx(10 + inline_pause_ms)
    assert overlap.inline_forward_ms == pytest.approx(7)
    assert overlap.saved is not None
    assert overlap.saved.ms_per_step == pytest.approx(inline_pause_ms, abs=1e-6)
    assert overlap.saved.interval_ms == pytest.approx((inline_pause_ms, inline_pause_ms), abs=1e-6)
    assert overlap.hidden_grammar_ms_per_step == pytest.approx(hidden_ms, abs=1e-6)
    assert overlap.exposed_grammar_ms_per_step == pytest.approx(3.5 - hidden_ms, abs=1e-6)
    assert overlap.hidden_grammar_share == pytest.approx(hidden_ms / 3.5, abs=1e-6)
    assert overlap.hidden_grammar_share_interval == pytest.approx((hidden_ms / 3.5,) * 2, abs=1e-6)
    assert overlap.exposed_grammar_share_of_step == pytest.approx((3.5 - hidden_ms) / 10, abs=1e-6)


def test_steps_are_paired_by_their_forwards_not_by_their_ends() -> None:
    """Steps of 20, 40, 20, 40, ... ms; our host ends each while its forward runs, the inline one behind it."""

    def run(saved_ms: float, ends_ms: float) -> Timeline:
        timeline, begin = Timeline(dict(regular().facts)), 0.0
        for step in range(8):
            length = (40 if step % 2 else 20) - saved_ms
            timeline.add("device", "forward", (begin + 1) / 1e3, (begin + length - 1) / 1e3)
            timeline.add("host", "build", (begin + 2) / 1e3, (begin + 4) / 1e3)
            timeline.end_step((begin + min(ends_ms, length)) / 1e3)
            begin += length
        return timeline

    overlap = summary(run(1.5, ends_ms=5), against=run(0, ends_ms=100))
    assert overlap.saved is not None
    assert overlap.saved.ms_per_step == pytest.approx(1.5)
    assert (overlap.inline_step_ms, overlap.step_ms) == pytest.approx((20, 18.5))
    assert overlap.hidden_grammar_ms_per_step == pytest.approx(1.5)


def test_the_last_step_alone_is_no_pair() -> None:
    with pytest.raises(ConfigError, match="step 2 has no forward behind it"):
        summary(regular(), slice(2, None), against=regular(pause_ms=1))
    assert summary(regular(), slice(2, None)).step_ms == pytest.approx(10)


def test_a_run_that_became_slower_hid_nothing() -> None:
    overlap = summary(regular(pause_ms=4), against=regular())
    assert overlap.saved is not None
    assert overlap.saved.ms_per_step == pytest.approx(-4)
    assert overlap.hidden_grammar_share == 0
    assert overlap.exposed_grammar_share_of_step == pytest.approx(3.5 / 14)


def test_another_run_is_no_measure() -> None:
    with pytest.raises(ConfigError, match="3 steps, the one held against has 4"):
        summary(regular(3), against=regular(4))
    other = regular(3)
    other.facts["backend"] = "llguidance"
    with pytest.raises(ConfigError, match="backend 'xgrammar', the one held against with 'llguidance'"):
        summary(regular(3), against=other)
    with pytest.raises(ConfigError, match="3 steps, repeat 2 has 4"):
        together([regular(3), regular(4)])
    with pytest.raises(ConfigError, match="recorded with backend 'xgrammar', repeat 2 with 'llguidance'"):
        together([regular(3), other])
    with pytest.raises(ConfigError, match="2 traces are held against 1; give as many"):
        together([regular(3), regular(3)], [regular(3)])


def test_repeats_are_summarized_together() -> None:
    overlap = together([regular(3, pause_ms=pause_ms) for pause_ms in (0, 2, 4, 20, 30)])
    assert (overlap.num_repeats, overlap.num_steps) == (5, 3)
    assert overlap.step_ms == pytest.approx(14)
    assert overlap.mean_step_ms == pytest.approx(10 + 56 / 5)
    assert overlap.bubble_ms_per_step == pytest.approx(7)
    assert overlap.grammar_ms_per_step == pytest.approx(3.5)
    assert overlap.overlap_share_of_all_steps == pytest.approx(3 / 3.5)
    stages = {s.stage: s.median_ms_per_step for s in overlap.stages}
    assert (stages["build"], stages["forward"]) == pytest.approx((1.5, 7))


def test_a_stage_of_one_repeat_took_no_time_in_the_others() -> None:
    odd = regular(3)
    odd.add("host", "compile", odd.begin + 0.0001, odd.begin + 0.0007)
    for repeats in ([odd, regular(3)], [regular(3), odd]):
        compiles = next(s for s in together(repeats).stages if s.stage == "compile")
        assert (compiles.median_ms_per_step, compiles.mean_ms_per_step) == pytest.approx((0, 0.1))


def test_what_was_saved_is_seen_through_a_drift_that_is_larger() -> None:
    # Each repeat of both is slower than the one before by 5 ms, and one inline run was disturbed.
    ours = [regular(4, pause_ms=5 * repeat) for repeat in range(7)]
    inline = [regular(4, pause_ms=5 * repeat + (40 if repeat == 3 else 1)) for repeat in range(7)]
    overlap = together(ours, inline)
    assert overlap.saved is not None
    assert overlap.saved.ms_per_step == pytest.approx(1)
    assert overlap.saved.ms_by_repeat == pytest.approx((1, 1, 1, 40, 1, 1, 1))
    assert overlap.saved.interval_ms[0] == pytest.approx(1)
    assert overlap.saved.num_pairs == 21, "the last forward of each repeat has none behind it"
    assert overlap.hidden_grammar_share == pytest.approx(1 / 3.5)


@settings(max_examples=30)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(-9, 9))
def test_the_interval_of_what_was_saved(noise_ms: list[float], saved_ms: float) -> None:
    ours = [100.0] * (5 * len(noise_ms))
    inline = [100 + saved_ms + noise for noise in noise_ms for _ in range(5)]
    saved = Saved.of(inline, ours, len(noise_ms))
    low, high = saved.interval_ms
    assert low <= saved.ms_per_step + 1e-9
    assert saved.ms_per_step <= high + 1e-9
    assert min(noise_ms) <= low - saved_ms + 1e-9
    assert high - saved_ms <= max(noise_ms) + 1e-9
    assert saved.ms_by_repeat == pytest.approx([saved_ms + noise for noise in noise_ms])
    if len(noise_ms) == 1:
        assert low == pytest.approx(high), "one repeat tells nothing of others"


def test_the_interval_finds_the_truth_as_often_as_it_says() -> None:
    random, num_right = np.random.default_rng(5), 0
    for _ in range(60):
        drift = random.normal(scale=3, size=(12, 1))
        saved = Saved.of(
            (1 + drift + random.normal(scale=2, size=(12, 9))).ravel().tolist(), [0.0] * 108, num_repeats=12
        )
        num_right += saved.interval_ms[0] <= 1 <= saved.interval_ms[1]
    assert num_right >= 54


def test_one_slow_step_moves_the_mean_alone() -> None:
    timeline = regular(6)
    second = timeline.step_ends[0]  # a request joins: a second in front of the second step's forward
    timeline.spans = [
        span._replace(begin=span.begin + 1, end=span.end + 1) if span.begin >= second else span
        for span in timeline.spans
    ]
    timeline.step_ends[1:] = [end + 1 for end in timeline.step_ends[1:]]
    overlap = summary(timeline)
    assert overlap.step_ms == pytest.approx(10)
    assert overlap.mean_step_ms == pytest.approx((1_010 + 4 * 10) / 5)
    assert overlap.exposed_grammar_share_of_step == pytest.approx(0.05)
    assert summary(timeline, slice(1, None)).mean_step_ms == pytest.approx(10)


def test_the_sum_over_all_steps_shows_what_a_median_leaves_out() -> None:
    timeline = regular(5)
    end = timeline.step_ends[-1]
    timeline.spans.append(Span("host", "build", end, end + 0.007))  # 7 ms in a sixth step, under no forward
    timeline.end_step(end + 0.01)
    overlap = summary(timeline)
    assert overlap.hidden_grammar_share == pytest.approx(3 / 3.5)
    assert overlap.overlap_share_of_all_steps == pytest.approx(5 * 3 / (5 * 3.5 + 7))


def test_grammar_work_in_the_device_s_lane_is_exposed_and_none_of_the_host_s() -> None:
    timeline = regular()
    begin = timeline.begin
    for step in range(3):
        timeline.add("device", "apply", begin + step / 100 + 0.0087, begin + step / 100 + 0.0095)
    overlap = summary(timeline)
    # The device's from 8.7 to 9.5, the host's until 9: what both do at a time counts once.
    assert overlap.grammar_ms_per_step == pytest.approx(3.5)
    assert overlap.hidden_grammar_share == pytest.approx(3 / 3.5)
    assert overlap.device_grammar_ms_per_step == pytest.approx(0.5)
    assert overlap.exposed_grammar_ms_per_step == pytest.approx(1)
    assert overlap.exposed_grammar_share_of_step == pytest.approx(0.1)
    assert overlap.bubble_ms_per_step == pytest.approx(2.2)


def test_work_that_the_forward_waits_for_hides_grammar_work_as_the_forward_does() -> None:
    timeline = regular()
    # The forward begins at 4 instead of 1.5; until 3.9 the device keeps the cache.
    late = [s._replace(begin=s.begin + 0.0025) if s.stage == "forward" else s for s in timeline.spans]
    timeline.spans = late
    for step in range(3):
        timeline.add("device", "keep", 5 + step / 100 + 0.0015, 5 + step / 100 + 0.0039)
    overlap = summary(timeline)
    assert overlap.overlap_ms_per_step == pytest.approx(2.9), "barrier 2-3, build 3.5-3.9 and 4-5, upload 5-5.5"
    assert overlap.under_forward_ms_per_step == pytest.approx(1.5), "build 4-5, upload 5-5.5"


def test_without_forwards_nothing_is_said_about_hiding() -> None:
    timeline = regular()
    timeline.spans = [span for span in timeline.spans if span.lane == "host"]
    overlap = summary(timeline, against=regular(pause_ms=1))
    assert overlap.step_ms == pytest.approx(10)
    assert overlap.grammar_ms_per_step == pytest.approx(3.5)
    assert overlap.forward_ms is overlap.bubble_ms_per_step is overlap.overlap_ms_per_step is None
    assert overlap.under_forward_ms_per_step is None
    assert overlap.hidden_grammar_share is overlap.exposed_grammar_share_of_step is None
    assert overlap.overlap_share_of_all_steps is None


def test_a_run_without_a_grammar_exposes_nothing() -> None:
    timeline = regular()
    timeline.spans = [span for span in timeline.spans if span.stage in ("launch", "forward", "accept")]
    overlap = summary(timeline)
    assert (overlap.grammar_ms_per_step, overlap.hidden_grammar_share) == (0, None)
    assert overlap.exposed_grammar_share_of_step == 0


def test_an_unfinished_step_is_left_out() -> None:
    timeline = regular()
    timeline.add("host", "build", 5.03, 9.0)
    assert summary(timeline) == summary(regular())


@pytest.mark.parametrize(
    ("selection", "steps"),
    [
        (slice(None), range(3)),
        (slice(1, 2), range(1, 2)),
        (slice(-2, None), range(1, 3)),
        (slice(2, 99), range(2, 3)),
    ],
)
def test_steps_are_selected_as_python_does(selection: slice, steps: range) -> None:
    assert selected_steps(regular(), selection) == steps
    assert summary(regular(), selection).num_steps == len(steps)


def test_no_step_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has steps 0 to 2; the selection has none"):
        selected_steps(regular(), slice(3, 9))
    with pytest.raises(ConfigError, match="no finished step"):
        selected_steps(regular(0))


@pytest.mark.parametrize(
    ("needs", "overlaps", "words"),
    [
        ("history", False, "history-synchronous: in sync"),
        ("grammar", False, "grammar-synchronous"),
        ("nothing", True, "overlapped across steps"),
        ("nothing", False, "in sync: the algorithm does not support grammar overlap"),
        (None, None, "unknown"),
    ],
)
def test_the_kind_of_overlap_is_said(needs: str | None, overlaps: bool | None, words: str) -> None:
    said = how_it_overlaps({"needs": needs, "supports_grammar_overlap": overlaps})
    assert said.startswith(words)


# -- intervals, against sets of whole units ------------------------------------------------------------------

PAIRS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=8
)


def units(intervals: list[Interval]) -> set[int]:
    return {unit for begin, end in intervals for unit in range(int(begin), int(end))}


@given(PAIRS, PAIRS, st.lists(st.integers(0, 30), max_size=5))
def test_intervals_are_sets(a: list[Interval], b: list[Interval], ends: list[int]) -> None:
    union = merged(a)
    assert units(union) == units(a)
    assert all(first[1] < second[0] for first, second in pairwise(union))
    assert units(common(merged(a), merged(b))) == units(a) & units(b)
    assert units(outside(merged(a), merged(b))) == units(a) - units(b)
    hull = set(range(int(union[0][0]), int(union[-1][1]))) if union else set[int]()
    assert units(between(union)) == hull - units(a)
    ends.sort()
    begins = [-1, *ends]
    expected = [len(units(a) & set(range(begin, end))) for begin, end in zip(begins, ends, strict=False)]
    assert by_step(union, ends) == expected


@st.composite
def nested(draw: st.DrawFn, begin: int = 0, end: int = 24, depth: int = 0) -> list[Span]:
    """Nested spans in the order in which they end, each with a stage of its own."""
    spans: list[Span] = []
    at = begin
    while at < end and depth < 3 and draw(st.booleans()):
        first = draw(st.integers(at, end))
        last = draw(st.integers(first, end))
        spans += draw(nested(first, last, depth + 1))
        spans.append(Span("host", f"{depth}-{first}-{last}-{len(spans)}", first, last))
        at = last
    return spans


@given(nested())
def test_each_moment_belongs_to_the_innermost_span(spans: list[Span]) -> None:
    owner: dict[int, str] = {}
    for span in reversed(spans):  # outer spans end later: inner ones paint over them
        owner |= dict.fromkeys(range(int(span.begin), int(span.end)), span.stage)
    pieces = innermost(spans)
    painted = [(unit, piece.stage) for piece in pieces for unit in range(int(piece.begin), int(piece.end))]
    assert painted == sorted(owner.items())
