"""`specgrammar trace`: what of a recorded run's grammar work was hidden, as text, JSON and a picture."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from specgrammar.checks import show
from specgrammar.cli.svg import write_svg
from specgrammar.cli.table import table
from specgrammar.cli.timeline_svg import draw
from specgrammar.errors import ConfigError
from specgrammar.runtime.overlap import Overlap, how_it_overlaps, selected_steps, summarize
from specgrammar.runtime.timeline import Timeline

_DESCRIPTION = """Summarize a trace of `specgrammar generate --trace`: what of the grammar's work on the host
was hidden under the device's, what was exposed, and how long the device waited."""

_STEPS = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?")
_DRAWN_STEPS = 4  # a window that shows single stages
_MOST_DRAWN_STEPS = 40  # what 1,200 pixels still resolve


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("trace", help="summarize and draw a recorded run", description=_DESCRIPTION)
    add = command.add_argument
    add(
        "traces",
        metavar="TRACE.json",
        nargs="+",
        help="a file that `specgrammar generate --trace` wrote, or several of the same run",
    )
    add(
        "--against",
        metavar="INLINE.json",
        nargs="+",
        default=[],
        help="the same run on the inline device, as often, recorded in turns; hidden time is then at most what "
        "steps were shorter by (default: none, and contention is not accounted for)",
    )
    add(
        "--steps",
        metavar="A:B",
        default=":",
        help="from step A on and before step B, as in Python: --steps=-20: are the last 20 (default: all)",
    )
    add(
        "--svg",
        metavar="FILE.svg",
        help=f"draw the timeline: of --steps, if they are at most {_MOST_DRAWN_STEPS}, else of the "
        f"{_DRAWN_STEPS} in their middle (default: do not)",
    )
    add("--output", choices=("text", "json"), default="text", help="tables, or a JSON object (default: text)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary and draw the picture."""
    selection = _slice(arguments.steps)
    repeats, against = (
        [Timeline.load(path) for path in paths] for paths in (arguments.traces, arguments.against)
    )
    timeline = repeats[0]
    steps = selected_steps(timeline, selection)
    overlap = summarize(repeats, steps, against)
    if arguments.svg is not None:
        write_svg(arguments.svg, draw(timeline, _drawn(steps, selection)))
    if arguments.output == "json":
        print(json.dumps(as_json(timeline.facts, overlap)))
    else:
        print("\n".join(as_text(timeline.facts, overlap)))
    return 0


def as_json(facts: Mapping[str, Any], overlap: Overlap) -> dict[str, Any]:
    """The summary as a JSON object; `specgrammar.runtime.overlap` says what each number is."""
    run = {"run": facts, "overlap": how_it_overlaps(facts)}
    return {**run, **_rounded(dataclasses.asdict(overlap))}


def _rounded(value: Any) -> Any:
    """Without the digits of a time that no clock has."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


def as_text(facts: Mapping[str, Any], overlap: Overlap) -> Iterator[str]:
    """The summary in lines for a reader."""
    yield ", ".join(f"{name} {value}" for name, value in facts.items())
    yield how_it_overlaps(facts)
    yield ""
    yield table(("per step, medians", "value"), list(_figures(overlap)))
    yield ""
    rows = [
        (s.lane, s.stage, s.median_ms_per_step, s.mean_ms_per_step, _percent(s.overlap_share))
        for s in overlap.stages
    ]
    yield table(("lane", "stage", "median ms", "mean ms", "while the device works"), rows)
    yield ""
    yield from _notes(overlap)


def _figures(overlap: Overlap) -> Iterator[tuple[str, str]]:
    times = f"{overlap.num_repeats} times " if overlap.num_repeats > 1 else ""
    yield "steps", f"{times}{overlap.num_steps} (from step {overlap.first_step} on)"
    yield "step", f"{_ms(overlap.step_ms)} (mean {_ms(overlap.mean_step_ms)})"
    yield "forward", _ms(overlap.forward_ms)
    if overlap.saved is not None:
        low, high = overlap.saved.interval_ms
        yield "step, inline", _ms(overlap.inline_step_ms)
        yield "forward, inline", _ms(overlap.inline_forward_ms)
        yield "saved against inline", f"{_ms(overlap.saved.ms_per_step)} (95 %: {low:.3f} to {high:.3f})"
    yield "grammar on the host", _ms(overlap.grammar_ms_per_step)
    yield "  while the device works", _ms(overlap.overlap_ms_per_step)
    yield "  under the forward itself", _ms(overlap.under_forward_ms_per_step)
    yield "grammar in the device's lane", _ms(overlap.device_grammar_ms_per_step)
    yield "hidden", _ms(overlap.hidden_grammar_ms_per_step)
    yield "exposed", _ms(overlap.exposed_grammar_ms_per_step)
    share = _percent(overlap.hidden_grammar_share)
    if overlap.hidden_grammar_share_interval is not None:
        share += " (95 %: {} to {})".format(*map(_percent, overlap.hidden_grammar_share_interval))
    yield "hidden, of the grammar's time on the host", share
    yield "exposed, of the step", _percent(overlap.exposed_grammar_share_of_step)
    yield "while the device works, of all steps' sum", _percent(overlap.overlap_share_of_all_steps)
    yield "bubble (device idle before a forward)", _ms(overlap.bubble_ms_per_step)


def _notes(overlap: Overlap) -> Iterator[str]:
    if overlap.forward_ms is None:
        yield "note: the device reported no work, so what was hidden cannot be told"
    elif overlap.hidden_is_measured:
        yield "note: hidden is at most what the step was shorter than inline; the rest of it is exposed"
        if overlap.saved is not None and overlap.saved.interval_ms[0] <= 0 <= overlap.saved.interval_ms[1]:
            yield "note: what was saved is not above the noise; record more repeats, in turns"
    else:
        yield (
            "note: hidden is the time while the device works; that the forward may have been slower for it is "
            "not accounted for (give the inline run with --against)"
        )
    if overlap.num_dropped:
        yield f"note: the recording was full: {overlap.num_dropped} spans behind its last step are not in it"


def _ms(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3f} ms"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _slice(text: str) -> slice:
    if not (match := _STEPS.fullmatch(text)):
        raise ConfigError(f"--steps = {show(text)}; expected A:B, e.g. 10:20")
    return slice(*(None if bound is None else int(bound) for bound in match.groups()))


def _drawn(steps: range, selection: slice) -> range:
    """The steps of the picture: what was asked for if that can be drawn, else a window in the middle."""
    if selection != slice(None, None) and len(steps) <= _MOST_DRAWN_STEPS:
        return steps
    begin = max(0, (len(steps) - _DRAWN_STEPS) // 2)
    return steps[begin : begin + _DRAWN_STEPS]
