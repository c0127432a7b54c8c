"""Runs in turns: nothing but the pauses is lost from a recording, and the texts are a lone run's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import overlap
from benchmarks.turns import all_at_first, without
from specgrammar.runtime.timeline import Timeline
from tests.cli.tiny_model import write_tiny_model
from tests.runtime.timelines import regular


def test_a_clock_that_stands_still() -> None:
    paused, regularly = regular(3, pause_ms=7), regular(3)
    begin, ends = paused.begin, paused.step_ends
    # Pauses behind the first and the second step's work, and one behind the end.
    cut = without(paused, [(end - 0.007, end) for end in ends[:2]] + [(ends[2] - 0.007, ends[2])])
    assert cut.begin == begin
    assert cut.step_ends == pytest.approx(regularly.step_ends)
    assert [s.stage for s in cut.spans] == [s.stage for s in regularly.spans]
    for moment in ("begin", "end"):
        of = [getattr(span, moment) for span in cut.spans]
        assert of == pytest.approx([getattr(span, moment) for span in regularly.spans])
    assert without(paused, []) == paused


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
def test_what_is_left_is_as_long_as_before(lengths: list[int], data: st.DataObject) -> None:
    """Spans one behind the other, some of them cut out."""
    timeline, pauses, now = Timeline(), list[tuple[float, float]](), 5.0
    kept = list[int]()
    for length in lengths:
        if data.draw(st.booleans()):
            pauses.append((now, now + length))
        else:
            timeline.add("host", "build", now, now + length)
            kept.append(length)
        now += length
    cut = without(timeline, pauses)
    assert [span.end - span.begin for span in cut.spans] == kept
    assert all(b.begin == a.end for a, b in zip(cut.spans, cut.spans[1:], strict=False))


def test_none_joins_before_all_can() -> None:
    agree = all_at_first(3)
    assert [1 in agree(ready) for ready in ((1,), (0, 1), (0, 1, 2), (1,), (1, 2))] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_both_devices_are_recorded_and_summarized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = write_tiny_model(tmp_path / "model"), tmp_path / "out"
    flags = ["--hidden", "--model", str(model), "--dtype", "float32", "--out", str(out)]
    flags += ["--prompts", "3", "--batch-size", "2", "--repeats", "2", "--turn", "3"]
    assert overlap.main(flags) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        f"{name}.{repeat:03}.json" for name in ("cpu-stream", "inline") for repeat in range(2)
    ]
    ours, inline = Timeline.load(out / "cpu-stream.000.json"), Timeline.load(out / "inline.000.json")
    assert len(ours.step_ends) == len(inline.step_ends) > 3
    assert (ours.facts["steps_per_turn"], ours.facts["dtype"]) == (3, "float32")
    assert "CpuStream" in ours.facts["device"]
    printed = capsys.readouterr().out
    assert "texts equal: yes" in printed
    assert f"2 times {len(ours.step_ends)} (from step 0 on)" in printed
    assert f"again: specgrammar trace {out}/cpu-stream.*.json --against {out}/inline.*.json" in printed
