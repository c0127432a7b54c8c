"""Spans and sums: nothing counted twice, nothing lost, and a file that comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.timeline import Span, Timeline
from specgrammar.runtime.trace import Trace
from tests.runtime.timelines import regular


def end_step(trace: Trace) -> None:
    trace.count(np.array([NodeStatus.LIVE], np.int8), np.array([0, 1]), 1, False)


def test_a_span_inside_another_takes_its_time_away() -> None:
    trace = Trace(timeline=Timeline())
    with trace.span("build"):
        with trace.span("barrier"), trace.span("deeper"):
            pass
        with trace.span("resolve"):
            pass
    with trace.span("build"):
        pass
    assert trace.timeline is not None
    spans = trace.timeline.spans
    assert [span.stage for span in spans] == ["deeper", "barrier", "resolve", "build", "build"]
    deeper, barrier, resolve, build, again = (span.end - span.begin for span in spans)
    assert trace.seconds == pytest.approx(
        {
            "deeper": deeper,
            "barrier": barrier - deeper,
            "resolve": resolve,
            "build": build - barrier - resolve + again,
        },
        abs=1e-12,
    )


def test_a_span_that_ends_with_an_error_is_kept() -> None:
    trace = Trace(timeline=Timeline())
    with pytest.raises(ZeroDivisionError), trace.span("outer"), trace.span("inner"):
        _ = 1 / 0
    with trace.span("after"):
        pass
    assert trace.timeline is not None
    assert [span.stage for span in trace.timeline.spans] == ["inner", "outer", "after"]
    after = trace.timeline.spans[-1]
    assert trace.seconds["after"] == after.end - after.begin, "the error left nothing behind"


def test_nothing_is_recorded_unless_asked_for() -> None:
    trace = Trace()
    with trace.span("build"):
        pass
    trace.device_work("forward", 1.0, 3.5)
    end_step(trace)
    assert trace.timeline is None
    assert set(trace.seconds) == {"build"}
    assert trace.device_seconds == {"forward": 2.5}
    assert trace.num_steps == 1


def test_device_work_comes_from_any_thread_and_none_is_lost() -> None:
    trace = Trace(timeline=Timeline(max_events=3_000))

    def report() -> None:
        for i in range(1_000):
            trace.device_work("forward", i, i + 1)

    threads = [Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trace.device_seconds["forward"] == 4_000
    assert trace.timeline is not None
    assert (len(trace.timeline.spans), trace.timeline.num_dropped) == (3_000, 1_000)


def test_a_step_lasts_until_it_is_counted() -> None:
    trace = Trace(timeline=Timeline())
    for stage in ("prefill", "propose", "settle", "commit"):
        with trace.span(stage):
            pass
        if stage in ("propose", "commit"):
            end_step(trace)
    timeline = trace.timeline
    assert timeline is not None
    assert [timeline.step_of(span.begin) for span in timeline.spans] == [0, 0, 1, 1]
    assert timeline.step_of(timeline.step_ends[-1]) == 2 == trace.num_steps


def test_a_full_timeline_keeps_whole_steps_only() -> None:
    timeline = Timeline(max_events=3)
    for step in range(3):
        for i in range(2):
            timeline.add("host", "build", step + i / 2, step + (i + 1) / 2)
        timeline.end_step(step + 1)
    assert timeline.step_ends == [1], "of the second step one span is missing"
    assert (len(timeline.spans), timeline.num_dropped) == (3, 3)


def test_the_file_is_chrome_s_format(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    timeline = regular(2)
    timeline.save(file)
    document = json.loads(file.read_text())
    assert document["otherData"] == timeline.facts | {"num_dropped": 0}
    events = document["traceEvents"]
    names = {(e["name"], e.get("tid")): e["args"] for e in events if e["ph"] == "M"}
    assert names["process_name", None] == {"name": "specgrammar"}
    assert (names["thread_name", 1], names["thread_name", 2]) == ({"name": "host"}, {"name": "device"})
    spans = {(e["name"], e["args"]["step"]): e for e in events if e["ph"] == "X"}
    assert len(spans) == 2 * 10
    forward = spans["forward", 1]
    assert (forward["pid"], forward["tid"], forward["cat"]) == (1, 2, "device")
    assert (forward["ts"], forward["dur"]) == (11_500, 7_000)
    barrier, build = spans["barrier", 0], spans["build", 0]
    assert (barrier["tid"], barrier["ts"], barrier["dur"]) == (1, 2_000, 1_000)
    assert build["ts"] <= barrier["ts"] < barrier["ts"] + barrier["dur"] <= build["ts"] + build["dur"]
    steps = [(e["args"]["step"], e["ts"]) for e in events if e["ph"] == "i"]
    assert steps == [(0, 10_000.0), (1, 20_000.0)]


TIMES = st.floats(0, 1e5, allow_nan=False)
STAGES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=8).filter(
    str.isprintable
)
SPANS = st.builds(
    lambda lane, stage, begin, length: Span(lane, stage, begin, begin + length),
    *(st.sampled_from(("host", "device")), STAGES, TIMES, TIMES),
)


@settings(deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=20), st.lists(TIMES, max_size=5))
def test_a_file_comes_back_as_it_was(spans: list[Span], ends: list[float]) -> None:
    timeline = Timeline({"algorithm": "ngram"}, spans, num_dropped=7)
    timeline.step_ends = sorted(timeline.begin + end for end in ends)
    with TemporaryDirectory() as folder:
        timeline.save(Path(folder, "a.json"))
        loaded = Timeline.load(Path(folder, "a.json"))
    assert (loaded.facts, loaded.num_dropped) == (timeline.facts, 7)
    assert [(span.lane, span.stage) for span in loaded.spans] == [(span.lane, span.stage) for span in spans]
    for ours, theirs in zip(spans, loaded.spans, strict=True):
        assert theirs[2:] == pytest.approx([time - timeline.begin for time in ours[2:]], abs=2e-9)
    assert loaded.step_ends == pytest.approx([end - timeline.begin for end in timeline.step_ends], abs=2e-9)
