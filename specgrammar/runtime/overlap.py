"""How much of the grammar's work was hidden under the device's: the numbers of `specgrammar trace`.

For one step, in seconds of a timeline:

    step      from the begin of its forward to the begin of the next one's; where the device reports none, from
              the end of the step before to its own end
    forward   the device's spans named `forward`
    grammar   the host's `barrier`, `build`, `upload`, `apply` and `resample`. A moment inside two spans counts
              once, as the inner one's: `resolve`, the wait for drafts that a device made, is no grammar work
    overlap   grammar during which the device worked: at a forward, or at what the next forward waits for (the
              cache kept, a draft, a prompt). That under a forward itself is given, too
    aside     grammar work that the device reports (`apply` on a CPU stream), which nothing hides
    bubble    from the end of the last forward to the begin of this one, less what else the device did then

and over the steps of all repeats of the run, each one a median, so that a step with a prefill or a compilation
in it does not matter:

    hidden    overlap; where the same run without overlap is given (`against`), at most what that saved:
                  saved  = median over all pairs of (inline step - step), paired by repeat and number
                  hidden = min(overlap, max(0, saved))
              since the two share cores and memory, and a forward that the host slows down has hidden nothing
    exposed   grammar - hidden + aside
    hidden_grammar_share              hidden / grammar
    exposed_grammar_share_of_step     exposed / step

Grammar work is some percent of a step, and a machine's speed drifts by more than that. A pair's steps do the
same work (the texts are equal), so its difference has neither the steps' lengths in it nor, where the two runs
took turns, the drift; `saved` has an interval (see `specgrammar.runtime.saved`) that says what noise is left,
and so has `hidden_grammar_share`.

All other work is cut where the host ends steps. Work behind the last one, of a step that was not finished, is
left out, and so is a step that one of the runs does not have. Where steps overlap with each other, a request
that ends is in one step more than inline: that step's pair has more work on our side, which counts against what
was saved. A host on a stream ends a step while its forward runs and waits for that in the next one, so steps by
their ends would be no pairs: the one would have the forward of the step before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import Any

from specgrammar.errors import ConfigError
from specgrammar.runtime.saved import Saved
from specgrammar.runtime.step_times import StepTimes, from_forward_to_forward
from specgrammar.runtime.timeline import LANES, Lane, Timeline

_SAME_RUN = (
    "algorithm",
    "backend",
    "policy",
    "max_batch_size",
)  # facts that a run and its inline counterpart share


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
    """The summary of a run; times in milliseconds per step, medians where the name does not say otherwise.

    What needs the device's work is None where it reported none, what needs an inline run is None without one,
    and the share of no grammar work is None.

    Attributes:
        num_repeats: recordings of the run.
        first_step: the first selected step.
        num_steps: how many of each repeat, all with their ends.
        saved: what the inline run's steps were longer by.
        hidden_is_measured: whether hidden time is limited to what was saved.
        hidden_grammar_share_interval: the share at either end of the interval of `saved`.
        overlap_share_of_all_steps: of the grammar's time in all selected steps, summed, the part during which
            the device worked: what medians could leave out.
        num_dropped: spans that did not fit the recordings, all behind their last steps.
    """

    num_repeats: int
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
    saved: Saved | None
    hidden_is_measured: bool
    hidden_grammar_ms_per_step: float | None
    exposed_grammar_ms_per_step: float | None
    hidden_grammar_share: float | None
    hidden_grammar_share_interval: tuple[float, float] | None
    exposed_grammar_share_of_step: float | None
    overlap_share_of_all_steps: float | None
    num_dropped: int
    stages: tuple[StageTime, ...]


def summarize(repeats: Sequence[Timeline], steps: range, against: Sequence[Timeline] = ()) -> Overlap:
    """Summarize a run.

    Args:
        repeats: its recordings, at least one; the same work step for step.
        steps: the steps to look at (see `selected_steps`).
        against: the same run on the inline device as often, recorded in turns with `repeats`; or nothing.

    Raises:
        ConfigError: a recording is of another run, or those against are not as many.
    """
    _check_same_run(repeats, against)
    num_common = min(len(timeline.step_ends) for timeline in [*repeats, *against])
    steps = range(steps.start, min(steps.stop, num_common))
    ours, inline = StepTimes.of(repeats, steps), StepTimes.of(against, steps)
    lengths, inline_lengths = _lengths(repeats, against, steps)
    step_ms, grammar_ms, aside_ms = median(lengths), median(ours.grammar), median(ours.aside)
    overlap_ms = median(ours.overlap) if ours.has_device else None
    saved = Saved.of(inline_lengths, lengths, len(repeats)) if against else None
    hidden, share_interval = overlap_ms, None
    if saved is not None and overlap_ms is not None:
        hidden, low, high = (min(overlap_ms, max(0.0, ms)) for ms in (saved.ms_per_step, *saved.interval_ms))
        share_interval = (low / grammar_ms, high / grammar_ms) if grammar_ms > 0 else None
    exposed = None if hidden is None else grammar_ms - hidden + aside_ms
    return Overlap(
        num_repeats=len(repeats),
        first_step=steps.start,
        num_steps=len(steps),
        step_ms=step_ms,
        mean_step_ms=fmean(lengths),
        forward_ms=median(ours.forward) if ours.has_device else None,
        bubble_ms_per_step=median(ours.bubble) if ours.bubble else None,
        grammar_ms_per_step=grammar_ms,
        overlap_ms_per_step=overlap_ms,
        under_forward_ms_per_step=median(ours.under_forward) if ours.has_device else None,
        device_grammar_ms_per_step=aside_ms,
        inline_step_ms=median(inline_lengths) if against else None,
        inline_forward_ms=median(inline.forward) if against and inline.has_device else None,
        saved=saved,
        hidden_is_measured=saved is not None,
        hidden_grammar_ms_per_step=hidden,
        exposed_grammar_ms_per_step=exposed,
        hidden_grammar_share=_share(hidden, grammar_ms),
        hidden_grammar_share_interval=share_interval,
        exposed_grammar_share_of_step=_share(exposed, step_ms),
        overlap_share_of_all_steps=_share(sum(ours.overlap), sum(ours.grammar)) if ours.has_device else None,
        num_dropped=sum(timeline.num_dropped for timeline in repeats),
        stages=tuple(_stages(ours)),
    )


def _lengths(repeats: Sequence[Timeline], against: Sequence[Timeline], steps: range) -> tuple[list[float], ...]:
    """How long the steps of both runs were, those of a pair at the same place."""
    times = from_forward_to_forward([*repeats, *against], steps)
    if not all(times):  # no device reports, or the last step alone, which has no forward behind it
        if against and all(StepTimes.of([timeline], steps).has_device for timeline in (*repeats, *against)):
            raise ConfigError(
                f"step {steps.start} has no forward behind it to tell where it ends; select one before it, too"
            )
        times = [StepTimes.of([timeline], steps).step for timeline in (*repeats, *against)]
    parts = times[: len(repeats)], times[len(repeats) :]
    return tuple(list(chain.from_iterable(part)) for part in parts)


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


def _stages(times: StepTimes) -> list[StageTime]:
    stages = [
        StageTime(
            lane,
            stage,
            median(column.time),
            fmean(column.time),
            _share(sum(column.overlap), sum(column.time)) if lane == "host" and times.has_device else None,
        )
        for (lane, stage), column in times.stages.items()
        if any(column.time)
    ]
    return sorted(stages, key=lambda stage: (LANES.index(stage.lane), -stage.mean_ms_per_step, stage.stage))


def _check_same_run(repeats: Sequence[Timeline], against: Sequence[Timeline]) -> None:
    if against and len(against) != len(repeats):
        raise ConfigError(
            f"{len(repeats)} traces are held against {len(against)}; give as many, recorded in turns: the "
            "first belongs to the first, and so on"
        )
    first = repeats[0]
    for number, timeline in enumerate([*repeats, *against]):
        which = "the one held against" if number >= len(repeats) else f"repeat {number + 1}"
        # Steps that overlap may be more: the last was launched before anybody knew that all was over.
        num_fewer = len(first.step_ends) - len(timeline.step_ends)
        if num_fewer and not (num_fewer == 1 and first.facts.get("num_overlapped_steps")):
            raise ConfigError(
                f"the trace has {len(first.step_ends)} steps, {which} has {len(timeline.step_ends)}; "
                "record both with the same prompts and options, but for the device"
            )
        for name in _SAME_RUN:
            ours, theirs = first.facts.get(name), timeline.facts.get(name)
            if ours != theirs:
                raise ConfigError(f"the trace was recorded with {name} {ours!r}, {which} with {theirs!r}")


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None
