"""Where a step's time goes, and what became of its drafts."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.sources import SourceTable
from specgrammar.runtime.timeline import Timeline

if TYPE_CHECKING:
    from specgrammar.runtime.draft_record import DraftRecorder
    from specgrammar.runtime.results import PublishedStep


class _Timed:
    """The time inside goes to a stage; a class, as a generator for it takes more than twice as long."""

    __slots__ = ("_begin", "_inside_outer", "_stage", "_trace")

    def __init__(self, trace: Trace, stage: str) -> None:
        self._trace, self._stage = trace, stage

    def __enter__(self) -> None:
        trace = self._trace
        self._inside_outer, trace._seconds_inside = trace._seconds_inside, 0.0
        self._begin = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        trace, end = self._trace, time.perf_counter()
        spent = end - self._begin
        trace.seconds[self._stage] += spent - trace._seconds_inside
        trace._seconds_inside = self._inside_outer + spent
        if trace.timeline is not None:
            trace.timeline.add("host", self._stage, self._begin, end)


@dataclass
class Trace:
    """Sums over the steps of a run, and each span by itself where somebody asks for it.

    Sums cost nothing worth mention and are always kept. Single spans are kept in a `Timeline`: set one before
    the run (`engine.trace.timeline = Timeline()`), read or save it behind.

    Spans and counts come from the engine's thread. `device_work` may be called from any.

    Attributes:
        seconds: host seconds by stage name; a stage inside another takes its time away from the outer one, so
            that nothing is counted twice.
        device_seconds: what the device's work took, by label; empty where the device does not tell.
        num_steps: target forwards.
        num_overlapped_steps: of these, those launched before the host had the result of the step before.
        num_draft_tokens: draft tokens verified, roots and padding not counted.
        num_accepted: of these, those that were committed.
        num_rejected_by_grammar: of these, those that are illegal or below an illegal one, as far as the grammar
            was asked: lazily masked steps ask it about the target's path alone.
        num_pruned: draft tokens that were cut before they were verified: illegal ones, and those over a budget.
        num_mask_rows: bitmask rows filled.
        num_stale_drafts: drafts dropped because they were made for another step.
        num_never_engaged: requests that came out before their grammar began (see `Request.grammar_start`).
        sources: the drafts of each source, and what a verified node costs.
        timeline: keeps every span and step; None, the default, keeps none.
        recorder: keeps every step's draft trees; None, the default, keeps none.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    device_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_steps: int = 0
    num_overlapped_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    num_rejected_by_grammar: int = 0
    num_pruned: int = 0
    num_mask_rows: int = 0
    num_stale_drafts: int = 0
    num_never_engaged: int = 0
    sources: SourceTable = field(default_factory=SourceTable)
    timeline: Timeline | None = None
    recorder: DraftRecorder | None = None
    _seconds_inside: float = field(default=0.0, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def span(self, stage: str) -> _Timed:
        """Add the time inside to a stage, but for that of spans inside it."""
        return _Timed(self, stage)

    def device_work(self, label: str, begin: float, end: float) -> None:
        """Add a piece of the device's work, e.g. `forward`; begin and end are `time.perf_counter()` seconds."""
        with self._lock:
            self.device_seconds[label] += end - begin
        if self.timeline is not None:
            self.timeline.add("device", label, begin, end)

    @property
    def num_rejected_by_target(self) -> int:
        """The other drafts that the target did not take; of lazily masked steps all."""
        return self.num_draft_tokens - self.num_accepted - self.num_rejected_by_grammar

    def count(
        self, status: NDArray[np.int8], cu_nodes: NDArray[np.int64], num_rows: int, is_overlapped: bool
    ) -> None:
        """End a step: count its nodes by their statuses, and by where each request's begin and end.

        What becomes of the drafts in the end is added to `num_accepted` when it is known.
        """
        is_draft = np.ones(len(status), np.bool_)
        is_draft[cu_nodes[:-1]] = False
        drafts = status[is_draft]
        self.num_steps += 1
        self.num_draft_tokens += int(np.count_nonzero(drafts != NodeStatus.PADDING))
        self.num_rejected_by_grammar += int(np.count_nonzero(drafts == NodeStatus.REJECTED))
        self.num_overlapped_steps += is_overlapped
        self.num_mask_rows += num_rows
        if self.timeline is not None:
            self.timeline.end_step(time.perf_counter())

    def count_drafts(self, published: PublishedStep, drafting_s: float | None, step_s: float | None) -> None:
        """Count a step's drafts by their sources.

        Args:
            published: with its `drafted` tree.
            drafting_s: host seconds of drafting; None where the host did not do all of it.
            step_s: seconds from the forward's launch to its paths; None where the host did not wait for them.
        """
        drafted = published.drafted
        assert drafted is not None
        self.num_pruned += len(drafted.pruned)
        self.sources.add(drafted, published.status, drafting_s)
        if step_s is not None:
            self.sources.costs.add(drafted.bs, drafted.num_nodes, step_s)
        if self.recorder is not None:
            self.recorder.add(published)
