"""`generate --trace` and `specgrammar trace`: a run becomes a file, a summary and a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageFont

from specgrammar.cli import generate
from specgrammar.cli.main import main
from specgrammar.cli.svg import width_of
from specgrammar.cli.timeline_svg import WIDTH, draw
from specgrammar.runtime import timeline as timeline_module
from specgrammar.runtime.timeline import Timeline
from tests.cli.tiny_model import write_tiny_model
from tests.runtime.timelines import FACTS, regular

SVG = "{http://www.w3.org/2000/svg}"
FONT = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
BOLD = FONT.with_name("DejaVuSans-Bold.ttf")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns its status, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        argv = [str(argument) for argument in arguments]
        if argv[0] == "generate":
            argv += ["--model", str(model), "--dtype", "float32"]
        capsys.readouterr()
        status = main(argv)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return call


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "trace.json"
    regular(5).save(file)
    return file


def errors_of(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("specgrammar: error:")]


# -- a real run ----------------------------------------------------------------------------------------------


def test_a_run_is_recorded_summarized_and_drawn(run: Run, tmp_path: Path) -> None:
    file, picture = tmp_path / "trace.json", tmp_path / "trace.svg"
    flags = ("--prompt", "hi", "--regex", "(ab){6}c?", "--algorithm", "ngram", "--mask-policy", "eager")
    status, out, _ = run("generate", *flags, "--output", "json", "--trace", file)
    assert status == 0
    num_forwards = json.loads(out.splitlines()[-1])["summary"]["num_forwards"]

    document = json.loads(file.read_text())
    facts = document["otherData"]
    assert (facts["algorithm"], facts["backend"], facts["needs"]) == ("ngram", "xgrammar", "history")
    assert facts["supports_grammar_overlap"] is False
    assert facts["device"].startswith("cpu (")
    assert facts["policy"] == "eager"
    stages = {event["name"] for event in document["traceEvents"] if event["ph"] == "X"}
    assert {"compile", "prefill", "propose", "wait", "accept", "commit", "settle"} <= stages
    assert {"build", "upload", "apply"} <= stages

    status, out, _ = run("trace", file, "--svg", picture, "--output", "json")
    assert status == 0
    summary = json.loads(out)
    assert summary["num_steps"] == num_forwards
    assert summary["overlap"].startswith("history-synchronous")
    assert 0 < summary["grammar_ms_per_step"] < summary["step_ms"]
    assert ElementTree.parse(picture).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (RuntimeError("no"), 70)])
def test_a_run_that_breaks_off_leaves_its_trace(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(generate, "print_output", stop)  # as if it came between two steps
    file, prompts = tmp_path / "trace.json", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"id": {i}, "prompt": "a", "choice": ["x"]}}\n' for i in range(3)))
    assert (
        run("generate", "--prompts", prompts, "--batch-size", "1", "--mask-policy", "eager", "--trace", file)[0]
        == status
    )
    assert len(Timeline.load(file).step_ends) >= 1
    assert run("trace", file)[0] == 0


@pytest.mark.parametrize("path", ["", "no/such/folder/trace.json", "trace\0.json"])
def test_a_place_where_no_trace_can_be_is_refused_before_a_model_is_loaded(
    run: Run, tmp_path: Path, path: str
) -> None:
    # The wrong --device would be refused on loading.
    status, _, stderr = run("generate", "--prompt", "a", "--trace", f"{tmp_path}/{path}", "--device", "quantum")
    assert status == 2
    (error,) = errors_of(stderr)
    assert "--trace: " in error


# -- the summary ---------------------------------------------------------------------------------------------


def test_the_summary_as_json(run: Run, saved: Path) -> None:
    status, out, stderr = run("trace", saved, "--output", "json")
    assert (status, stderr) == (0, "")
    summary = json.loads(out)
    assert summary["run"] == FACTS
    assert (summary["num_steps"], summary["first_step"]) == (5, 0)
    assert summary["hidden_grammar_share"] == pytest.approx(3 / 3.5, abs=1e-6)
    assert summary["exposed_grammar_share_of_step"] == pytest.approx(0.05, abs=1e-6)
    assert summary["bubble_ms_per_step"] == pytest.approx(3, abs=1e-6)
    build = {"lane": "host", "stage": "build", "median_ms_per_step": 1.5, "mean_ms_per_step": 1.5}
    assert build | {"overlap_share": 1.0} in summary["stages"]


def test_the_summary_as_text(run: Run, saved: Path) -> None:
    status, out, _ = run("trace", saved, "--steps", "1:4")
    assert status == 0
    assert "history-synchronous" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "steps 3 (from step 1 on)" in lines
    assert "step 10.000 ms (mean 10.000 ms)" in lines
    assert "hidden, of the grammar's time on the host 85.7 %" in lines
    assert "exposed, of the step 5.0 %" in lines
    assert "host build 1.500 1.500 100.0 %" in lines
    assert "not accounted for" in out


def test_the_summary_against_the_inline_run(run: Run, saved: Path, tmp_path: Path) -> None:
    regular(5, pause_ms=1).save(tmp_path / "inline.json")
    status, out, _ = run("trace", saved, "--against", tmp_path / "inline.json")
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "saved against inline 1.000 ms (95 %: 1.000 to 1.000)" in lines
    assert "hidden 1.000 ms" in lines
    assert "exposed 2.500 ms" in lines
    assert "hidden, of the grammar's time on the host 28.6 % (95 %: 28.6 % to 28.6 %)" in lines
    assert "not accounted for" not in out
    assert "noise" not in out
    regular(4).save(tmp_path / "shorter.json")
    status, out, stderr = run("trace", saved, "--against", tmp_path / "shorter.json")
    assert (status, out) == (2, "")
    assert "5 steps, the one held against has 4" in errors_of(stderr)[0]


def test_repeats_are_held_against_as_many_inline(run: Run, tmp_path: Path) -> None:
    ours, inline = ([tmp_path / f"{name}.{i}.json" for i in range(3)] for name in ("ours", "inline"))
    for i, extra_ms in enumerate((-2, 1, 3)):  # of steps that become longer from one repeat to the next
        regular(5, pause_ms=10 * i).save(ours[i])
        regular(5, pause_ms=10 * i + 2 + extra_ms).save(inline[i])
    status, out, _ = run("trace", *ours, "--against", *inline)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "steps 3 times 5 (from step 0 on)" in lines
    assert "step 20.000 ms (mean 20.000 ms)" in lines
    assert "step, inline 23.000 ms" in lines
    assert "saved against inline 3.000 ms (95 %: 0.000 to 5.000)" in lines
    assert "what was saved is not above the noise" in out
    status, out, _ = run("trace", *ours, "--against", *inline, "--output", "json")
    summary = json.loads(out)
    assert summary["num_repeats"] == 3
    assert summary["saved"]["ms_per_step"] == pytest.approx(3, abs=1e-6)
    assert summary["saved"]["ms_by_repeat"] == pytest.approx([0, 3, 5], abs=1e-6)
    assert summary["saved"]["num_pairs"] == 12
    assert summary["hidden_grammar_share_interval"] == pytest.approx([0, 3 / 3.5], abs=1e-5)
    status, out, stderr = run("trace", *ours, "--against", *inline[:2])
    assert (status, out) == (2, "")
    assert "3 traces are held against 2; give as many" in errors_of(stderr)[0]


def test_what_the_recording_lacks_is_noted(run: Run, tmp_path: Path) -> None:
    timeline = regular(3)
    timeline.spans = [span for span in timeline.spans if span.lane == "host"]
    timeline.num_dropped = 9
    timeline.save(tmp_path / "trace.json")
    _, out, _ = run("trace", tmp_path / "trace.json")
    assert "reported no work" in out
    assert "9 spans behind its last step are not in it" in out
    assert "forward not known" in " ".join(out.split())


# -- wrong input ---------------------------------------------------------------------------------------------

GOOD = {"name": "build", "ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "cat": "host"}


def trace_of(*events: object, **facts: object) -> str:
    return json.dumps({"otherData": {"num_dropped": 0, **facts}, "traceEvents": list(events)})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"ts": ' + "9" * 5_000 + "}", "not JSON"),
        ("[]", "no list `traceEvents`"),
        ("3", "no list `traceEvents`"),
        ('{"traceEvents": {}}', "no list `traceEvents`"),
        ('{"traceEvents": []}', "says nothing about a run of specgrammar"),
        ('{"traceEvents": [], "otherData": {"num_dropped": "x"}}', "says nothing about a run"),
        (trace_of(), "no finished step"),
        (trace_of(GOOD), "no finished step"),
        (trace_of(3), "traceEvents[0] = 3 is no event"),
        (trace_of(GOOD, GOOD | {"ph": "B"}), "traceEvents[1]"),
        (trace_of(GOOD | {"cat": "gpu"}), "cat 'gpu'"),
        (trace_of(GOOD | {"name": 3}), "name 3"),
        (trace_of(GOOD | {"name": "\ud800"}), "name '\\ud800'"),
        (trace_of(GOOD | {"ts": float("nan")}), "ts nan"),
        (trace_of(GOOD | {"ts": 10**400}), "expected microseconds"),
        (trace_of(GOOD | {"dur": -1}), "dur -1"),
        (trace_of(GOOD | {"dur": None}), "dur None"),
        (trace_of({"ph": "i", "ts": 2}, {"ph": "i", "ts": 1}), "not in order"),
        (trace_of(algorithm="\ud800"), "cannot be printed"),
    ],
)
def test_a_file_that_is_no_trace_is_one_clear_error(run: Run, tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    for flags in ((), ("--output", "json"), ("--svg", tmp_path / "a.svg")):
        status, out, stderr = run("trace", file, *flags)
        assert (status, out) == (2, "")
        (error,) = errors_of(stderr)
        assert words in error
    assert not (tmp_path / "a.svg").exists()


def test_paths_and_steps_are_checked(
    run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[Any, ...], str]] = [
        ((tmp_path / "no.json",), "cannot be read"),
        ((tmp_path,), "cannot be read"),
        (("a\0",), "cannot be read"),
        ((saved, "--against", tmp_path / "no.json"), "cannot be read"),
        ((saved, "--svg", tmp_path), "--svg: "),
        ((saved, "--steps", "3"), "--steps = '3'; expected A:B"),
        ((saved, "--steps", "1:2:3"), "expected A:B"),
        ((saved, "--steps", "9" * 30 + ":"), "expected A:B"),
        ((saved, "--steps", "7:9"), "steps 0 to 4; the selection has none"),
        ((), "TRACE.json"),
    ]
    for arguments, words in calls:
        status, out, stderr = run("trace", *arguments)
        assert (status, out) == (2, "")
        (error,) = errors_of(stderr)
        assert words in error
    monkeypatch.setattr(timeline_module, "MAX_FILE_BYTES", 1_000)
    assert "record a shorter run" in errors_of(run("trace", saved)[2])[0]


# -- the picture ---------------------------------------------------------------------------------------------


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts_of(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def boxes_of(picture: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """Each text with left, top, right and bottom, by the real font's widths."""
    boxes = []
    for element in picture.iter(f"{SVG}text"):
        text, size = element.text or "", float(element.attrib["font-size"])
        font = ImageFont.truetype(BOLD if "font-weight" in element.attrib else FONT, size)
        width = font.getlength(text)
        x, y = float(element.attrib["x"]), float(element.attrib["y"])
        left = x - width * {"start": 0, "middle": 0.5, "end": 1}[element.attrib["text-anchor"]]
        boxes.append((text, left, y - 0.8 * size, left + width, y + 0.2 * size))
    return boxes


def rectangles(picture: ElementTree.Element, stage: str) -> list[tuple[float, float]]:
    """Left edge and width of a stage's rectangles."""
    return [
        (float(element.attrib["x"]), float(element.attrib["width"]))
        for element in picture.iter(f"{SVG}rect")
        if any((tip.text or "").startswith(f"{stage}, ") for tip in element)
    ]


def check_layout(picture: ElementTree.Element) -> None:
    height = float(picture.attrib["height"])
    boxes = boxes_of(picture)
    for text, left, top, right, bottom in boxes:
        assert left >= 0, text
        assert right <= WIDTH, text
        assert top >= 0, text
        assert bottom <= height, text
    for i, (text, left, top, right, bottom) in enumerate(boxes):
        for other, left2, top2, right2, bottom2 in boxes[:i]:
            apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
            assert apart, f"{text!r} lies over {other!r}"
    for element in picture.iter(f"{SVG}rect"):
        assert float(element.attrib["x"]) >= 0
        assert float(element.attrib["width"]) > 0
        assert float(element.attrib["x"]) + float(element.attrib["width"]) <= WIDTH + 0.5


def test_the_picture_shows_lanes_stages_and_what_was_hidden() -> None:
    picture = drawn(draw(regular(), range(1, 2)))
    check_layout(picture)
    texts = texts_of(picture)
    assert {"host", "device", "grammar", "step 1", "ms since the recording began"} <= set(texts)
    assert {"10", "12", "20"} <= set(texts), "ticks, from the begin of the recording"
    assert {"build (grammar)", "grammar while the device works", "grammar exposed"} <= set(texts), "the legend"
    assert any(text.startswith("Steps 1 to 1 of 3") for text in texts)
    # 10 ms on 1,090 pixels from 90 on.
    assert rectangles(picture, "forward") == [pytest.approx((90 + 1.5 * 109, 7 * 109), abs=0.1)]
    assert rectangles(picture, "barrier") == [pytest.approx((90 + 2 * 109, 109), abs=0.1)]
    assert rectangles(picture, "build") == [pytest.approx((90 + 3.5 * 109, 1.5 * 109), abs=0.1)]
    strip = [e.attrib for e in picture.iter(f"{SVG}rect") if e.attrib["height"] == "16.0"]
    places = {(e["fill"], round(float(e["x"]) - 90), round(float(e["width"]))) for e in strip}
    assert len({fill for fill, *_ in places}) == 2
    assert {place[1:] for place in places} == {(218, 109), (382, 218), (926, 54)}


def test_the_window_is_the_middle_of_a_long_run(run: Run, tmp_path: Path) -> None:
    file, svg = tmp_path / "trace.json", tmp_path / "a.svg"
    regular(100).save(file)

    def shown(*flags: str) -> str:
        assert run("trace", file, "--svg", svg, *flags)[0] == 0
        picture = drawn(svg.read_text(encoding="utf-8"))
        check_layout(picture)
        return next(text.split(":")[0] for text in texts_of(picture) if text.startswith("Steps"))

    assert shown() == "Steps 48 to 51 of 100"
    assert shown("--steps", "10:13") == "Steps 10 to 12 of 100"
    assert shown("--steps=-40:") == "Steps 60 to 99 of 100"
    assert shown("--steps", "0:60") == "Steps 28 to 31 of 100", "too many to see"


NAMES = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x17F), max_size=40)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 30),
    st.floats(1e-6, 3.0),
    st.lists(NAMES, max_size=20),
    st.dictionaries(st.sampled_from(("algorithm", "backend", "device", "needs")), NAMES),
)
def test_no_text_lies_over_another_whatever_is_drawn(
    num_steps: int, length: float, stages: list[str], facts: dict[str, str]
) -> None:
    timeline, time = Timeline(facts), 77.0
    for step in range(num_steps):
        for i, stage in enumerate(["propose", "build", *stages, "commit"]):
            end = time + length * (0.1 + (i * 7 + step) % 5)
            timeline.add("device" if i % 3 == 2 else "host", stage, time, end)
            time = end
        timeline.end_step(time)
    check_layout(drawn(draw(timeline, range(num_steps))))


def test_widths_are_estimated_on_the_safe_side() -> None:
    for text in (
        "propose",
        "launch",
        "grammar while the device works",
        "step 1234",
        "build (grammar)",
        "0123456789.5",
    ):
        for size in (11, 12, 16):
            assert ImageFont.truetype(FONT, size).getlength(text) <= width_of(text, size) * 1.01
