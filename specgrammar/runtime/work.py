"""Whose work a timeline's spans are: the grammar's, the forward's, or other work of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specgrammar.runtime.intervals import Interval, common, innermost, merged, outside
from specgrammar.runtime.timeline import Lane, Span, Timeline

GRAMMAR_STAGES = ("barrier", "build", "upload", "apply", "resample")
FORWARD = "forward"


@dataclass(frozen=True)
class Work:
    """When what was done; sorted, disjoint intervals in seconds of a timeline.

    Attributes:
        forward: the device's forwards.
        busy: all that the device did, but for grammar work.
        grammar: the host's grammar work.
        aside: the device's grammar work at which the host did none.
    """

    forward: list[Interval]
    busy: list[Interval]
    grammar: list[Interval]
    aside: list[Interval]

    @classmethod
    def of(cls, timeline: Timeline) -> Work:
        """Sort out a timeline's spans."""
        host, device = pieces(timeline, "host"), pieces(timeline, "device")
        grammar = _merged(piece for piece in host if piece.stage in GRAMMAR_STAGES)
        return cls(
            forward=_merged(piece for piece in device if piece.stage == FORWARD),
            busy=_merged(piece for piece in device if piece.stage not in GRAMMAR_STAGES),
            grammar=grammar,
            aside=outside(_merged(piece for piece in device if piece.stage in GRAMMAR_STAGES), grammar),
        )

    @property
    def overlap(self) -> list[Interval]:
        """The host's grammar work while the device worked."""
        return common(self.grammar, self.busy)

    @property
    def exposed(self) -> list[Interval]:
        """All other grammar work."""
        return merged([*outside(self.grammar, self.busy), *self.aside])


def pieces(timeline: Timeline, lane: Lane) -> list[Span]:
    """A lane's spans, those inside others cut out."""
    return innermost([span for span in timeline.spans if span.lane == lane])


def _merged(spans: Iterable[Span]) -> list[Interval]:
    return merged((span.begin, span.end) for span in spans)
