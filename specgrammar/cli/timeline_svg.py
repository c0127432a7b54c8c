"""The picture of a timeline: what host and device did in a few steps, and where grammar work was hidden."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from specgrammar.cli.svg import document, label, line, rectangle, shortened, width_of
from specgrammar.runtime.intervals import common
from specgrammar.runtime.overlap import how_it_overlaps, summarize
from specgrammar.runtime.timeline import LANES, Span, Timeline
from specgrammar.runtime.work import GRAMMAR_STAGES, Work

WIDTH = 1200.0
_LEFT, _RIGHT = 90.0, 1180.0
_TITLE, _FACTS, _FIGURES, _STEPS = 28.0, 50.0, 68.0, 96.0  # baselines
_TOP = {"host": 104.0, "device": 184.0}
_LANE_HEIGHT = 52.0
_STRIP, _STRIP_HEIGHT = 162.0, 16.0
_AXIS, _LEGEND = 242.0, 312.0
_ROW = 22.0
_BOLD = 1.12  # how much wider it is

# The grammar's work is what the picture is about: warm and strong; the rest is cool and pale.
_COLOURS = {
    "barrier": "#d7301f",
    "build": "#fc8d59",
    "upload": "#fdbb84",
    "apply": "#b30000",
    "resample": "#7f0000",
    "propose": "#9ecae1",
    "launch": "#4292c6",
    "resolve": "#c6b5dd",
    "wait": "#eeeeee",
    "accept": "#a1d99b",
    "commit": "#66a97a",
    "settle": "#c7e9c0",
    "compile": "#d9c9a3",
    "prefill": "#b3a1cf",
    "draft": "#6a9bc3",
    "keep": "#8d9dc4",
    "forward": "#3b4a6b",
}
_OTHER_COLOUR = "#bdbdbd"
_HIDDEN, _EXPOSED = "#238b45", "#e31a1c"


def draw(timeline: Timeline, steps: range) -> str:
    """The steps as an SVG document: two lanes, and between them the grammar's work, hidden or exposed."""
    ends = timeline.step_ends
    begin = ends[steps.start - 1] if steps.start else min(timeline.begin, ends[0])
    window = _Window(begin, max(ends[steps.stop - 1], begin + 1e-9))
    origin = timeline.begin
    # A long run's other steps are not sorted out; but for one before, at which the first bubble begins.
    since = begin if steps.start < 2 else ends[steps.start - 2]
    near = [span for span in timeline.spans if span.end > since and span.begin < window.end]
    timeline = dataclasses.replace(timeline, spans=near)
    work = Work.of(timeline)
    shown = [piece for lane in LANES for piece in work.pieces[lane] if window.shows(piece)]
    stages = [stage for stage in _COLOURS if any(piece.stage == stage for piece in shown)]
    stages += sorted({piece.stage for piece in shown}.difference(stages))
    entries = [(stage, _colour(stage)) for stage in stages]
    entries += [("grammar while the device works", _HIDDEN), ("grammar exposed", _EXPOSED)]
    legend, height = _legend(entries)
    title = f"Steps {steps.start} to {steps.stop - 1} of {len(ends)}: host and device"
    elements = [
        *_heading(timeline, steps, title),
        *_lanes(timeline, window, shown),
        *_strip(work, window),
        *_step_marks(window, [begin, *ends[steps.start : steps.stop]], steps.start),
        *_axis(window, origin),
        *legend,
    ]
    return document(WIDTH, height, title, elements)


class _Window:
    """The shown part of the clock, and where it is on the page."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end

    def shows(self, span: Span) -> bool:
        return span.begin < self.end and span.end > self.begin

    def x(self, time: float) -> float:
        share = (min(max(time, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return _LEFT + (_RIGHT - _LEFT) * share


def _heading(timeline: Timeline, steps: range, title: str) -> Iterator[str]:
    facts, width = timeline.facts, _RIGHT - 20
    run = ", ".join(str(facts[name]) for name in ("algorithm", "backend", "device") if name in facts)
    overlap = summarize([timeline], steps)
    figures = (
        f"medians of these steps: step {overlap.step_ms:.2f} ms, grammar {overlap.grammar_ms_per_step:.2f} ms"
    )
    if overlap.overlap_ms_per_step is not None:
        figures += f", of it while the device works {overlap.overlap_ms_per_step:.2f} ms"
    if overlap.bubble_ms_per_step is not None:
        figures += f", bubble {overlap.bubble_ms_per_step:.2f} ms"
    title = f"{title} ({run})" if run else title
    yield label(20, _TITLE, shortened(title, width / _BOLD, 16), size=16, bold=True)
    yield label(20, _FACTS, shortened(how_it_overlaps(facts), width, 12))
    yield label(20, _FIGURES, shortened(figures, width, 12))


def _lanes(timeline: Timeline, window: _Window, shown: Sequence[Span]) -> Iterator[str]:
    for lane in LANES:
        yield label(_LEFT - 8, _TOP[lane] + _LANE_HEIGHT / 2 + 4, lane, anchor="end", bold=True)
        yield rectangle(_LEFT, _TOP[lane], _RIGHT - _LEFT, _LANE_HEIGHT, "#fafafa")
    for piece in shown:
        x, end = window.x(piece.begin), window.x(piece.end)
        milliseconds = 1e3 * (piece.end - piece.begin)
        tip = f"{piece.stage}, step {timeline.step_of(piece.begin)}: {milliseconds:.3f} ms"
        yield rectangle(x, _TOP[piece.lane], max(end - x, 0.4), _LANE_HEIGHT, _colour(piece.stage), tip)
        if width_of(piece.stage, 11) + 6 <= end - x:
            y = _TOP[piece.lane] + _LANE_HEIGHT / 2 + 4
            fill = "#ffffff" if _is_dark(_colour(piece.stage)) else "#222222"
            yield label((x + end) / 2, y, piece.stage, size=11, fill=fill, anchor="middle")


def _strip(work: Work, window: _Window) -> Iterator[str]:
    """The grammar's work once more, by whether the device worked at the time."""
    yield label(_LEFT - 8, _STRIP + 12, "grammar", anchor="end", bold=True)
    for intervals, colour in ((work.overlap, _HIDDEN), (work.exposed, _EXPOSED)):
        for begin, end in common(intervals, [(window.begin, window.end)]):
            x = window.x(begin)
            yield rectangle(x, _STRIP, max(window.x(end) - x, 0.4), _STRIP_HEIGHT, colour)


def _step_marks(window: _Window, bounds: Sequence[float], first: int) -> Iterator[str]:
    free = _LEFT
    for number, time in enumerate(bounds, first):
        x, text = window.x(time), f"step {number}"
        yield line(x, _STEPS - 10, x, _AXIS, dashed=True)
        end = x + 4 + width_of(text, 11)
        if x >= free and end <= _RIGHT and number < first + len(bounds) - 1:
            yield label(x + 4, _STEPS, text, size=11)
            free = end + 6


def _axis(window: _Window, origin: float) -> Iterator[str]:
    """Ticks of 1, 2 or 5 times a power of ten, about eight of them."""
    yield line(_LEFT, _AXIS, _RIGHT, _AXIS)
    begin, end = 1e3 * (window.begin - origin), 1e3 * (window.end - origin)
    power = 10.0 ** math.floor(math.log10((end - begin) / 8))
    tick = next(m * power for m in (1, 2, 5, 10) if m * power >= (end - begin) / 8)
    decimals = max(0, -math.floor(math.log10(tick) + 1e-9))
    for number in range(math.ceil(begin / tick - 1e-9), math.floor(end / tick + 1e-9) + 1):
        x = window.x(origin + number * tick / 1e3)
        yield line(x, _AXIS, x, _AXIS + 5)
        text = f"{number * tick:.{decimals}f}"
        middle = min(x, WIDTH - width_of(text, 11) / 2)  # a long one stays in the picture
        yield label(middle, _AXIS + 19, text, size=11, anchor="middle")
    yield label((_LEFT + _RIGHT) / 2, _AXIS + 40, "ms since the recording began", anchor="middle")


def _legend(entries: Sequence[tuple[str, str]]) -> tuple[list[str], float]:
    """Swatches with their names, in rows, and the height of the whole picture."""
    elements: list[str] = []
    x, y = _LEFT, _LEGEND
    for name, colour in entries:
        text = shortened(name, 260, 12)
        if name in GRAMMAR_STAGES:
            text += " (grammar)"
        width = 20 + width_of(text, 12) + 16
        if x + width > _RIGHT:
            x, y = _LEFT, y + _ROW
        elements += [rectangle(x, y - 11, 14, 14, colour), label(x + 20, y, text)]
        x += width
    return elements, y + 20


def _colour(stage: str) -> str:
    return _COLOURS.get(stage, _OTHER_COLOUR)


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue < 120
