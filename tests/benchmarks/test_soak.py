"""The soak benchmark: its verdicts on series that are known, its target, and the whole run on a small scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import soak
from benchmarks.footprint import footprint
from benchmarks.soak import SETUPS, run
from benchmarks.soak_report import Memory, Run, Trend, Window, draw, judged, print_report, trends
from benchmarks.soak_target import ILLEGAL_EVERY, ScriptedTarget
from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree


def trend(values: list[float]) -> Trend:
    return Trend.of(list(range(500, 500 * len(values) + 1, 500)), values, unit=10_000)


def noisy(values: list[float], share: float) -> list[float]:
    rng = np.random.default_rng(0)
    return [value * (1 + share * float(rng.uniform(-1, 1))) for value in values]


def windows(rss: int, objects: int, threads: int, num: int = 20) -> list[Window]:
    """Windows of which each adds so much."""
    return [
        Window(100 * (i + 1), 1.0, 1.0, 2.0, 3.0, rss * i, 1_000 + (1 + objects) * i, 1 + threads * i, 7 * i)
        for i in range(num)
    ]


def test_a_series_is_flat_grows_falls_or_says_nothing() -> None:
    level = [100.0] * 20
    steep = [100.0 + 5 * i for i in range(20)]
    assert trend(level).verdict == trend(noisy(level, 0.05)).verdict == "flat"
    assert trend(steep).verdict == trend(noisy(steep, 0.05)).verdict == "grows"
    assert trend(steep[::-1]).verdict == "falls"
    assert trend(noisy(level, 0.4)).verdict == "too noisy"
    assert trend(noisy([100.0] * 10 + [120.0] * 10, 0.3)).verdict == "too noisy"


def test_a_trend_has_the_slope_and_the_ratio_of_its_line() -> None:
    found = trend([100.0 + 5 * i for i in range(20)])
    assert found.first == pytest.approx(112.5)
    assert found.last == pytest.approx(182.5)
    assert found.ratio == pytest.approx(182.5 / 112.5)
    assert found.slope == pytest.approx(100 / 147.5)
    assert found.spread == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["long", "short"])
def test_memory_is_judged_by_what_each_token_or_request_adds(kind: str) -> None:
    def verdict(rss: int, objects: int, threads: int) -> str:
        return Memory.of(Run(kind, "b", "a", "p", 1, windows(rss, objects, threads))).verdict

    assert verdict(100 * 1024, 1, 0) == "flat"
    assert verdict(100 * 1025, 1, 0) == "grows"
    assert verdict(0, 2, 0) == "grows"
    assert verdict(0, 0, 1) == "grows"


def test_the_warm_up_is_left_out() -> None:
    some = windows(0, 0, 0)
    assert [window.end for window in Run("short", "b", "a", "p", 1, some).warm] == list(range(600, 2_001, 100))


def test_the_target_writes_its_text_and_now_and_then_prefers_what_is_illegal() -> None:
    target = ScriptedTarget(VOCABULARY)
    text = [i % 16 for i in range(40)]
    target.write("a", [*text, STOP])
    target.write("b", [3, STOP])
    target.add("a", [0, 1])
    target.add("b", [0])
    views = (
        RequestView("a", [0, 1, *text[: ILLEGAL_EVERY - 2]], 2, 9, SamplingParams()),
        RequestView("b", [0, 3, STOP], 1, 9, SamplingParams()),
    )
    #  0 ── 1 ── 2   and the root alone; a draft that is wrong changes nothing
    #  └─── 3
    host = HostTree.from_parents(
        np.array([0, 4, 5]), np.array([13, 5, 6, 7, STOP]), np.array([-1, 0, 1, 0, -1])
    )
    logits = target.verify(DecodeBatch(0, views), DraftTree.from_host(0, host)).wait()
    illegal = min(VOCABULARY.special_ids - {STOP})
    assert logits.argmax(dim=1).tolist() == [14, illegal, 0, illegal, STOP]
    assert logits[1].topk(2).indices.tolist() == [illegal, 15]
    assert target.seconds > 0


def test_the_footprint_counts_what_is_held_once() -> None:
    class Holder:
        __slots__ = ("names", "rows", "same")

        def __init__(self) -> None:
            self.names = {"a": [1, 2, 3], "b": [4]}
            self.same = self.names
            self.rows = np.zeros(10, np.int32)

    assert footprint(Holder()) == {"Holder.names": 2, "Holder.rows": 40, "Holder.names[]": 4}


@pytest.mark.model
def test_the_whole_run_on_a_small_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = run("smollm2", num_long=len(SETUPS), bs=2, num_tokens=120, num_requests=20)
    assert [run.kind for run in runs] == ["long"] * len(SETUPS) + ["short"] * 4
    for one in runs:
        assert len(one.windows) == 20
        assert one.windows[-1].end == (120 if one.kind == "long" else 20)
        assert all(0 < window.step <= window.worst_step for window in one.windows)
        assert set(trends(one)) == ({"step"} if one.kind == "long" else {"step", "request"})
    print_report(runs, {})
    assert "memory: short llguidance ngram lazy" in capsys.readouterr().out
    monkeypatch.setattr(soak, "run", lambda *_arguments, **_options: runs)
    assert soak.main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert written == json.loads(json.dumps([judged(run) for run in runs]))
    draw(tmp_path / "out.png", runs)
    assert (tmp_path / "out.png").stat().st_size > 10_000
