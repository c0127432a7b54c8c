"""`StepTimes`: the numbers of recordings step by step, before anything is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrammar.runtime.intervals import Interval, between, by_step, common, merged
from specgrammar.runtime.timeline import Lane, Timeline
from specgrammar.runtime.work import FORWARD, Work


@dataclass
class StageColumn:
    """One stage in each step: its time alone, and of it that while the device worked."""

    time: list[float]
    overlap: list[float]


@dataclass
class StepTimes:
    """Milliseconds by step, repeat after repeat; `specgrammar.runtime.overlap` says what each is.

    Attributes:
        has_device: whether the device reported work in each repeat.
        bubble: only of steps whose forward had one before it.
        stages: by lane and stage; 0 in steps that do not have it.
    """

    has_device: bool = True
    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    grammar: list[float] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    under_forward: list[float] = field(default_factory=list)
    aside: list[float] = field(default_factory=list)
    bubble: list[float] = field(default_factory=list)
    stages: dict[tuple[Lane, str], StageColumn] = field(default_factory=dict)

    @classmethod
    def of(cls, repeats: Sequence[Timeline], steps: range) -> StepTimes:
        """Those of the given steps, which each repeat has."""
        times = cls()
        for timeline in repeats:
            times._add(timeline, steps)
        return times

    def _add(self, timeline: Timeline, steps: range) -> None:
        work = Work.of(timeline)
        ends, bubbles = timeline.step_ends, _bubbles(timeline)
        begins = [min(timeline.begin, ends[0]), *ends]

        def selected(intervals: Sequence[Interval]) -> list[float]:
            seconds = by_step(intervals, ends)
            return [1e3 * seconds[step] for step in steps]

        num_before = len(self.step)
        self.has_device &= bool(work.busy)
        self.step += [1e3 * (ends[step] - begins[step]) for step in steps]
        self.forward += selected(work.forward)
        self.grammar += selected(work.grammar)
        self.overlap += selected(work.overlap)
        self.under_forward += selected(common(work.grammar, work.forward))
        self.aside += selected(work.aside)
        self.bubble += [1e3 * bubbles[step] for step in steps if step in bubbles]
        by_stage = _intervals_by_stage(work)
        for name in by_stage.keys() - self.stages.keys():
            self.stages[name] = StageColumn([0.0] * num_before, [0.0] * num_before)
        for name, column in self.stages.items():
            intervals = by_stage.get(name, [])
            column.time += selected(intervals)
            column.overlap += selected(common(merged(intervals), work.busy))


def from_forward_to_forward(timelines: Sequence[Timeline], steps: range) -> list[list[float]]:
    """Milliseconds from the begin of each step's forward to that of the next one, by timeline.

    A host that runs ahead of its device ends a step before the device does, so its steps' own ends are not
    where those of a host are that waits: of two such runs, only forwards show which step is which.

    Args:
        timelines: whose devices report forwards, one a step.
        steps: which; those are left out that one of the timelines has no later forward behind.
    """
    begins = [_forward_begins(timeline) for timeline in timelines]
    stop = min([steps.stop, *(len(found) - 1 for found in begins)])
    return [[1e3 * (found[k + 1] - found[k]) for k in range(steps.start, stop)] for found in begins]


def _forward_begins(timeline: Timeline) -> list[float]:
    return sorted(s.begin for s in timeline.spans if s.lane == "device" and s.stage == FORWARD)


def _intervals_by_stage(work: Work) -> dict[tuple[Lane, str], list[Interval]]:
    by_stage: dict[tuple[Lane, str], list[Interval]] = {}
    for lane, pieces in work.pieces.items():
        for piece in pieces:
            by_stage.setdefault((lane, piece.stage), []).append((piece.begin, piece.end))
    return by_stage


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
