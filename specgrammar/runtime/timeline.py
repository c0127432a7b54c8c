"""`Timeline`: what host and device did when, in memory and as a file that Perfetto opens.

The file is Chrome's trace format (an object with `traceEvents`): a complete event (`X`) per span on one thread
per lane, an instant (`i`) named `step` where a step ends, and what the run was made of in `otherData`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, get_args

from specgrammar.checks import show
from specgrammar.errors import ConfigError

Lane = Literal["host", "device"]
LANES: tuple[Lane, ...] = get_args(Lane)

MAX_EVENTS = 500_000
"""Spans that a timeline keeps without being told: some 30,000 steps, 100 MB of memory."""
MAX_FILE_BYTES = 256 * 2**20
"""A file above this is refused; one of `MAX_EVENTS` spans has a quarter of it."""

_STEP = "step"


class Span(NamedTuple):
    """One stage of a lane's work, in seconds of one clock."""

    lane: Lane
    stage: str
    begin: float
    end: float


@dataclass
class Timeline:
    """Spans in the order in which they ended, and the times at which steps ended. Thread-safe.

    Steps are numbered from 0; step k lasts from the end of step k - 1, the first one from the first span.

    Attributes:
        facts: what the run was made of, JSON values by name (see `specgrammar.runtime.overlap`).
        spans: at most `max_events`; what comes later is dropped and counted, and so are the ends of steps, so
            that every step that is here is here as a whole.
        step_ends: when each step ended.
        num_dropped: spans that were not kept.
        max_events: the limit.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)
    num_dropped: int = 0
    max_events: int = MAX_EVENTS
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def add(self, lane: Lane, stage: str, begin: float, end: float) -> None:
        """Keep a span, or count it where there is no room."""
        with self._lock:
            if len(self.spans) < self.max_events:
                self.spans.append(Span(lane, stage, begin, end))
            else:
                self.num_dropped += 1

    def end_step(self, time: float) -> None:
        """A step is over; times never decrease."""
        with self._lock:
            if not self.num_dropped:
                self.step_ends.append(time)

    @property
    def begin(self) -> float:
        """Where the first span begins; 0 where there is none."""
        return min((span.begin for span in self.spans), default=0.0)

    def step_of(self, time: float) -> int:
        """The step that a time belongs to; `len(step_ends)` behind the last."""
        return bisect_right(self.step_ends, time)

    def save(self, path: str | Path) -> None:
        """Write the file; raises ConfigError where that is impossible."""
        with self._lock:  # the device's thread may still report
            lines = list(self._lines())
        try:
            with Path(path).open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms",\n"otherData": ')
                file.write(json.dumps(self.facts | {"num_dropped": self.num_dropped}))
                file.write(',\n"traceEvents": [\n')
                file.write(",\n".join(lines))
                file.write("\n]}\n")
        except (OSError, ValueError) as error:  # a ValueError: a NUL in the path
            raise ConfigError(f"trace {path} cannot be written: {error}") from error

    def _lines(self) -> Iterator[str]:
        yield _event("M", "process_name", args={"name": "specgrammar"})
        for thread, lane in enumerate(LANES, 1):
            yield _event("M", "thread_name", tid=thread, args={"name": lane})
            yield _event("M", "thread_sort_index", tid=thread, args={"sort_index": thread})
        origin = self.begin
        for span in self.spans:
            # Whole nanoseconds from the origin, so that a span ends nowhere behind the one around it.
            begin, end = round((span.begin - origin) * 1e9), round((span.end - origin) * 1e9)
            times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
            thread = LANES.index(span.lane) + 1
            yield _event(
                "X", span.stage, tid=thread, **times, cat=span.lane, args={_STEP: self.step_of(span.begin)}
            )
        for number, time in enumerate(self.step_ends):
            microseconds = round((time - origin) * 1e9) / 1e3
            yield _event("i", _STEP, tid=1, ts=microseconds, s="p", args={_STEP: number})

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read a file that `save` wrote; raises ConfigError for any other."""
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise ConfigError(f"trace {path} cannot be read: {error}") from error
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"trace {path} is larger than {MAX_FILE_BYTES >> 20} MiB; record a shorter run")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"trace {path} is not JSON: {error}") from error
        try:
            return _timeline(document)
        except _NotATraceError as error:
            raise ConfigError(
                f"trace {path}: {error}; give a file that `specgrammar generate --trace` wrote"
            ) from error


class _NotATraceError(Exception):
    """What is wrong with a document."""


def _event(phase: str, name: str, **rest: Any) -> str:
    return json.dumps({"name": name, "ph": phase, "pid": 1, **rest})


def _timeline(document: object) -> Timeline:
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise _NotATraceError("it has no list `traceEvents`")
    facts = document.get("otherData")
    num_dropped = facts.pop("num_dropped", None) if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(num_dropped, int):
        raise _NotATraceError("its `otherData` says nothing about a run of specgrammar")
    if not all(f"{name}{value}".isprintable() for name, value in facts.items()):
        raise _NotATraceError("its `otherData` has characters that cannot be printed")
    events = list(_checked(document["traceEvents"]))
    ends = [_seconds(event, "ts", where) for where, event in events if event["ph"] == "i"]
    if ends != sorted(ends):
        raise _NotATraceError("its steps are not in order")
    spans = [_span(event, where) for where, event in events if event["ph"] == "X"]
    return Timeline(facts, spans, ends, num_dropped, max(MAX_EVENTS, len(spans)))


def _checked(events: Iterable[object]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for i, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") not in ("M", "X", "i"):
            raise _NotATraceError(f"traceEvents[{i}] = {show(event)} is no event of a known kind")
        yield f"traceEvents[{i}]", event


def _span(event: Mapping[str, Any], where: str) -> Span:
    lane, stage = event.get("cat"), event.get("name")
    if lane not in LANES or not isinstance(stage, str) or not stage.isprintable():
        raise _NotATraceError(
            f"{where} has cat {show(lane)} and name {show(stage)}; expected a lane and a stage"
        )
    begin, length = _seconds(event, "ts", where), _seconds(event, "dur", where)
    return Span(lane, stage, begin, begin + length)


def _seconds(event: Mapping[str, Any], key: str, where: str) -> float:
    value = event.get(key)
    if not isinstance(value, int | float) or not 0 <= value <= 1e15 or math.isnan(value):
        raise _NotATraceError(f"{where} has {key} {show(value)}; expected microseconds from 0 on")
    return value / 1e6
