"""How much of the grammar's work was hidden under the device's: the numbers of `specgrammar trace`.

For one step, in seconds of a timeline:

    step      from the end of the step before to its own end
    forward   the device's spans named `forward`
    grammar   the host's `barrier`, `build`, `upload`, `apply` and `resample`. A moment inside two spans counts
              once, as the inner one's: `resolve`, the wait for drafts that a device made, is no grammar work
    overlap   grammar during which the device worked: at a forward, or at what the next forward waits for (the
              cache kept, a draft, a prompt). That under a forward itself is given, too
    aside     grammar work that the device reports (`apply` on a CPU stream), which nothing hides
    bubble    from the end of the last forward to the begin of this one, less what else the device did then

and over the steps, each one a median, so that a step with a prefill or a compilation in it does not matter:

    hidden    overlap; where the same run without overlap is given (`against`), at most what that saved:
                  saved  = median over the steps of (inline step - step)
                  hidden = min(overlap, max(0, saved))
              since the two share cores and memory, and a forward that the host slows down has hidden nothing
    exposed   grammar - hidden + aside
    hidden_grammar_share              hidden / grammar
    exposed_grammar_share_of_step     exposed / step

All work is cut at the ends of steps. Work behind the last one, of a step that was not finished, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from specgrammar.errors import ConfigError
from specgrammar.runtime.intervals import Interval, between, by_step, common, merged
from specgrammar.runtime.timeline import LANES, Lane, Timeline
from specgrammar.runtime.work import FORWARD, Work

_SAME_RUN = ("algorithm", "backend", "policy")  # facts that a run and its inline counterpart share


@dataclass(frozen=True)
class StageTime:
    """One stage over the selected steps, spans inside it not counted."""

    lane: Lane
    stage: str
    median_ms_per_step: float
    mean_ms_per_step: float
    overlap_share: float | None
    """Of its time, the part during which the device worked; None for a device's stage."""


@dataclass(frozen=True)
class Overlap:
    """The summary of a timeline; times in milliseconds per step, medians where the name does not say otherwise.

    What needs the device's work is None where it reported none, what needs an inline run is None without one,
    and the share of no grammar work is None.

    Attributes:
        first_step: the first selected step.
        num_steps: how many, all with their ends.
        hidden_is_measured: whether hidden time is limited to what an inline run was slower by.
        overlap_share_of_all_steps: of the grammar's time in all selected steps, summed, the part during which
            the device worked: what medians could leave out.
        num_dropped: spans that did not fit the recording, all behind its last step.
    """

    first_step: int
    num_steps: int
    step_ms: float
    mean_step_ms: float
    forward_ms: float | None
    bubble_ms_per_step: float | None
    grammar_ms_per_step: float
    overlap_ms_per_step: float | None
    under_forward_ms_per_step: float | None
    device_grammar_ms_per_step: float
    inline_step_ms: float | None
    inline_forward_ms: float | None
    saved_ms_per_step: float | None
    hidden_is_measured: bool
    hidden_grammar_ms_per_step: float | None
    exposed_grammar_ms_per_step: float | None
    hidden_grammar_share: float | None
    exposed_grammar_share_of_step: float | None
    overlap_share_of_all_steps: float | None
    num_dropped: int
    stages: tuple[StageTime, ...]


def summarize(timeline: Timeline, steps: range, against: Timeline | None = None) -> Overlap:
    """Summarize a timeline.

    Args:
        timeline: the recording.
        steps: the steps to look at (see `selected_steps`).
        against: the same run on the inline device, step for step.

    Raises:
        ConfigError: `against` is of another run.
    """
    work = Work.of(timeline)
    ours = _per_step(timeline, work, steps)
    step_ms, grammar_ms, aside_ms = median(ours.step), median(ours.grammar), median(ours.aside)
    overlap_ms = median(ours.overlap) if ours.has_device else None
    inline_step_ms = inline_forward_ms = saved = None
    hidden = overlap_ms
    if against is not None:
        _check_same_run(timeline, against)
        inline = _per_step(against, Work.of(against), steps)
        inline_step_ms = median(inline.step)
        inline_forward_ms = median(inline.forward) if inline.has_device else None
        saved = median(slow - fast for slow, fast in zip(inline.step, ours.step, strict=True))
        if overlap_ms is not None:
            hidden = min(overlap_ms, max(0.0, saved))
    exposed = None if hidden is None else grammar_ms - hidden + aside_ms
    return Overlap(
        first_step=steps.start,
        num_steps=len(steps),
        step_ms=step_ms,
        mean_step_ms=fmean(ours.step),
        forward_ms=median(ours.forward) if ours.has_device else None,
        bubble_ms_per_step=median(ours.bubble) if ours.bubble else None,
        grammar_ms_per_step=grammar_ms,
        overlap_ms_per_step=overlap_ms,
        under_forward_ms_per_step=median(ours.under_forward) if ours.has_device else None,
        device_grammar_ms_per_step=aside_ms,
        inline_step_ms=inline_step_ms,
        inline_forward_ms=inline_forward_ms,
        saved_ms_per_step=saved,
        hidden_is_measured=against is not None,
        hidden_grammar_ms_per_step=hidden,
        exposed_grammar_ms_per_step=exposed,
        hidden_grammar_share=_share(hidden, grammar_ms),
        exposed_grammar_share_of_step=_share(exposed, step_ms),
        overlap_share_of_all_steps=_share(sum(ours.overlap), sum(ours.grammar)) if ours.has_device else None,
        num_dropped=timeline.num_dropped,
        stages=tuple(_stages(work, timeline.step_ends, steps)),
    )


def selected_steps(timeline: Timeline, selection: slice = slice(None)) -> range:
    """The steps that a slice without a stride selects; raises ConfigError where that is none."""
    num_steps = len(timeline.step_ends)
    if not num_steps:
        raise ConfigError("the trace has no finished step; record a run that generates at least one token")
    if not (steps := range(num_steps)[selection]):
        raise ConfigError(f"the trace has steps 0 to {num_steps - 1}; the selection has none of them")
    return steps


def how_it_overlaps(facts: Mapping[str, Any]) -> str:
    """In words, what of a step waits for the step before it.

    Reads the facts `needs` (a producer's) and `supports_grammar_overlap` (its algorithm's).
    """
    needs, overlaps = facts.get("needs"), facts.get("supports_grammar_overlap")
    if needs == "grammar":
        return "grammar-synchronous: drafts read the grammar, which advances before each launch, exposed"
    if needs == "history":
        return (
            "history-synchronous: in sync with the ids of the step before, which drafts read; "
            "the grammar advances under the forward"
        )
    if overlaps is True:
        return "overlapped across steps: nothing of an unresolved step is read before the next launch"
    if overlaps is False:
        return "in sync: the algorithm does not support grammar overlap, so each step waits for the one before"
    return "unknown: the trace does not say what its algorithm reads"


@dataclass(frozen=True)
class _PerStep:
    """Milliseconds by selected step; a bubble only where there was a forward before."""

    has_device: bool
    step: list[float]
    forward: list[float]
    grammar: list[float]
    overlap: list[float]
    under_forward: list[float]
    aside: list[float]
    bubble: list[float]


def _per_step(timeline: Timeline, work: Work, steps: range) -> _PerStep:
    ends, bubbles = timeline.step_ends, _bubbles(timeline)
    begins = [min(timeline.begin, ends[0]), *ends]

    def selected(intervals: list[Interval]) -> list[float]:
        seconds = by_step(intervals, ends)
        return [1e3 * seconds[step] for step in steps]

    return _PerStep(
        has_device=bool(work.busy),
        step=[1e3 * (ends[step] - begins[step]) for step in steps],
        forward=selected(work.forward),
        grammar=selected(work.grammar),
        overlap=selected(work.overlap),
        under_forward=selected(common(work.grammar, work.forward)),
        aside=selected(work.aside),
        bubble=[1e3 * bubbles[step] for step in steps if step in bubbles],
    )


def _bubbles(timeline: Timeline) -> dict[int, float]:
    """By the step of the forward behind it: how long the device did nothing, in seconds."""
    device = [span for span in timeline.spans if span.lane == "device"]
    forwards = sorted((span.begin, span.end) for span in device if span.stage == FORWARD)
    begins = [begin for begin, _ in forwards[1:]]
    # Up to each forward's begin, as steps are up to their ends; the device was idle between what it did.
    idle = by_step(
        (
            gap
            for gap in between(merged((span.begin, span.end) for span in device))
            if forwards and gap[0] >= forwards[0][1]
        ),
        begins,
    )
    bubbles: dict[int, float] = {}
    for begin, seconds in zip(begins, idle, strict=True):
        step = timeline.step_of(begin)
        bubbles[step] = bubbles.get(step, 0.0) + seconds
    return bubbles


def _stages(work: Work, ends: Sequence[float], steps: range) -> list[StageTime]:
    stages = []
    for lane, pieces in work.pieces.items():
        by_stage: dict[str, list[Interval]] = {}
        for piece in pieces:
            by_stage.setdefault(piece.stage, []).append((piece.begin, piece.end))
        for stage, intervals in by_stage.items():
            times = [by_step(part, ends) for part in (intervals, common(merged(intervals), work.busy))]
            seconds, under = ([column[step] for step in steps] for column in times)
            share = _share(sum(under), sum(seconds)) if lane == "host" and work.busy else None
            if any(seconds):
                stages.append(StageTime(lane, stage, 1e3 * median(seconds), 1e3 * fmean(seconds), share))
    return sorted(stages, key=lambda stage: (LANES.index(stage.lane), -stage.mean_ms_per_step))


def _check_same_run(timeline: Timeline, against: Timeline) -> None:
    if len(timeline.step_ends) != len(against.step_ends):
        raise ConfigError(
            f"the trace has {len(timeline.step_ends)} steps, the one held against {len(against.step_ends)}; "
            "record both with the same prompts and options, but for the device"
        )
    for name in _SAME_RUN:
        ours, theirs = timeline.facts.get(name), against.facts.get(name)
        if ours != theirs:
            raise ConfigError(
                f"the trace was recorded with {name} {ours!r}, the one held against with {theirs!r}"
            )


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None
