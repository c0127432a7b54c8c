"""How much of the grammar's work was hidden under the forward: the numbers of `specgrammar trace`.

For one step, in seconds of a timeline:

    step      from the end of the step before to its own end
    forward   the device's spans named `forward`
    grammar   `barrier`, `build`, `upload`, `apply` and `resample`, on the host or reported by the device.
              A moment inside two spans counts once, as the inner one's: `resolve`, the wait for drafts that a
              device made, is no work of the grammar's
    overlap   what grammar and forward have in common
    bubble    from the end of the last forward to the begin of this one, less what else the device did then

and over the steps, each one a median, so that a step with a prefill or a compilation in it does not matter:

    hidden    overlap; where the same run without overlap is given (`against`), at most what that saved:
                  saved  = median over the steps of (inline step - step)
                  hidden = min(overlap, max(0, saved))
              since the two share cores and memory, and a forward that the host slows down has hidden nothing
    exposed   grammar - hidden
    hidden_grammar_share              hidden / grammar
    exposed_grammar_share_of_step     exposed / step

All work is cut at the ends of steps. Work behind the last one, of a step that was not finished, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from specgrammar.errors import ConfigError
from specgrammar.runtime.intervals import between, by_step, common, innermost, merged
from specgrammar.runtime.timeline import LANES, Lane, Span, Timeline

GRAMMAR_STAGES = ("barrier", "build", "upload", "apply", "resample")
FORWARD = "forward"

_SAME_RUN = ("algorithm", "backend", "policy")  # facts that a run and its inline counterpart share


@dataclass(frozen=True)
class StageTime:
    """One stage over the selected steps, spans inside it not counted."""

    lane: Lane
    stage: str
    median_ms_per_step: float
    mean_ms_per_step: float
    overlap_share: float | None
    """Of its time, the part under a forward; None for a device's stage."""


@dataclass(frozen=True)
class Overlap:
    """The summary of a timeline; times in milliseconds per step, medians where the name does not say otherwise.

    What needs the device's forwards is None where it reported none, what needs an inline run is None without
    one, and the share of no grammar work is None.

    Attributes:
        first_step: the first selected step.
        num_steps: how many, all with their ends.
        hidden_is_measured: whether hidden time is limited to what an inline run was slower by.
        overlap_share_of_all_steps: of the grammar's time in all selected steps, summed, the part under a
            forward: what medians could leave out.
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
    step, forward, grammar, overlap, bubble = _selected(timeline, steps)
    step_ms, grammar_ms = median(step), median(grammar)
    overlap_ms = median(overlap) if any(forward) else None
    inline_step_ms = inline_forward_ms = saved = None
    hidden = overlap_ms
    if against is not None:
        _check_same_run(timeline, against)
        inline_step, inline_forward, *_ = _selected(against, steps)
        inline_step_ms = median(inline_step)
        inline_forward_ms = median(inline_forward) if any(inline_forward) else None
        saved = median(slow - fast for slow, fast in zip(inline_step, step, strict=True))
        if overlap_ms is not None:
            hidden = min(overlap_ms, max(0.0, saved))
    exposed = None if hidden is None else grammar_ms - hidden
    return Overlap(
        first_step=steps.start,
        num_steps=len(steps),
        step_ms=step_ms,
        mean_step_ms=fmean(step),
        forward_ms=median(forward) if any(forward) else None,
        bubble_ms_per_step=median(bubble) if bubble else None,
        grammar_ms_per_step=grammar_ms,
        overlap_ms_per_step=overlap_ms,
        inline_step_ms=inline_step_ms,
        inline_forward_ms=inline_forward_ms,
        saved_ms_per_step=saved,
        hidden_is_measured=against is not None,
        hidden_grammar_ms_per_step=hidden,
        exposed_grammar_ms_per_step=exposed,
        hidden_grammar_share=_share(hidden, grammar_ms),
        exposed_grammar_share_of_step=_share(exposed, step_ms),
        overlap_share_of_all_steps=_share(sum(overlap), sum(grammar)) if any(forward) else None,
        num_dropped=timeline.num_dropped,
        stages=tuple(_stages(timeline, steps)),
    )


def selected_steps(timeline: Timeline, selection: slice = slice(None)) -> range:
    """The steps that a slice without a stride selects; raises ConfigError where that is none."""
    num_steps = len(timeline.step_ends)
    if not num_steps:
        raise ConfigError("the trace has no finished step; record a run that generates at least one token")
    if not (steps := range(num_steps)[selection]):
        raise ConfigError(f"the trace has steps 0 to {num_steps - 1}; the selection has none of them")
    return steps


def grammar_intervals(timeline: Timeline) -> list[tuple[float, float]]:
    """When the grammar's work was done, on the host or in the device's lane."""
    return merged(
        (piece.begin, piece.end)
        for lane in LANES
        for piece in _pieces(timeline, lane)
        if piece.stage in GRAMMAR_STAGES
    )


def forward_intervals(timeline: Timeline) -> list[tuple[float, float]]:
    """When the device computed a forward."""
    return merged((span.begin, span.end) for span in timeline.spans if _is_forward(span.lane, span.stage))


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


def _selected(timeline: Timeline, steps: range) -> tuple[list[float], ...]:
    """Step, forward, grammar, overlap and bubble of each step, in ms; a bubble only where there is one."""
    ends = timeline.step_ends
    forward, grammar = forward_intervals(timeline), grammar_intervals(timeline)
    begins = [min(timeline.begin, ends[0]), *ends]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=False)]
    columns = [lengths, *(by_step(part, ends) for part in (forward, grammar, common(grammar, forward)))]
    selected = [[1e3 * column[step] for step in steps] for column in columns]
    bubbles = _bubbles(timeline)
    return (*selected, [1e3 * bubbles[step] for step in steps if step in bubbles])


def _bubbles(timeline: Timeline) -> dict[int, float]:
    """By the step of the forward behind it: how long the device did nothing, in seconds."""
    forwards = sorted((span.begin, span.end) for span in timeline.spans if _is_forward(span.lane, span.stage))
    busy = merged((span.begin, span.end) for span in timeline.spans if span.lane == "device")
    begins = [begin for begin, _ in forwards[1:]]
    # Up to each forward's begin, as steps are up to their ends; the device was idle between what it did.
    idle = by_step((gap for gap in between(busy) if forwards and gap[0] >= forwards[0][1]), begins)
    bubbles: dict[int, float] = {}
    for begin, seconds in zip(begins, idle, strict=True):
        step = timeline.step_of(begin)
        bubbles[step] = bubbles.get(step, 0.0) + seconds
    return bubbles


def _stages(timeline: Timeline, steps: range) -> list[StageTime]:
    forward, ends = forward_intervals(timeline), timeline.step_ends
    stages = []
    for lane in LANES:
        by_stage: dict[str, list[tuple[float, float]]] = {}
        for piece in _pieces(timeline, lane):
            by_stage.setdefault(piece.stage, []).append((piece.begin, piece.end))
        for stage, intervals in by_stage.items():
            times = [by_step(part, ends) for part in (intervals, common(merged(intervals), forward))]
            seconds, under = ([column[step] for step in steps] for column in times)
            share = _share(sum(under), sum(seconds)) if lane == "host" and forward else None
            if any(seconds):
                stages.append(StageTime(lane, stage, 1e3 * median(seconds), 1e3 * fmean(seconds), share))
    return sorted(stages, key=lambda stage: (LANES.index(stage.lane), -stage.mean_ms_per_step))


def _pieces(timeline: Timeline, lane: Lane) -> list[Span]:
    return innermost([span for span in timeline.spans if span.lane == lane])


def _is_forward(lane: Lane, stage: str) -> bool:
    return lane == "device" and stage == FORWARD


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
