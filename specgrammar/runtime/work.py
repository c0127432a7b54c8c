"""Whose work a timeline's spans are: the grammar's, the forward's, or other work of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specgrammar.runtime.intervals import Interval, common, innermost, merged, outside
from specgrammar.runtime.timeline import LANES, Lane, Span, Timeline

GRAMMAR_STAGES = ("barrier", "prune", "build", "upload", "apply", "resample")
FORWARD = "forward"


@dataclass(frozen=True)
class Work:
    """When what was done; sorted, disjoint intervals in seconds of a timeline.

    Attributes:
        forward: the device's forwards.
        busy: all that the device did, but for grammar work.
        grammar: the host's grammar work.
        aside: the device's grammar work at which the host did none.
        pieces: of each lane, the spans with those inside them cut out.
    """

    forward: list[Interval]
    busy: list[Interval]
    grammar: list[Interval]
    aside: list[Interval]
    pieces: dict[Lane, list[Span]]

    @classmethod
    def of(cls, timeline: Timeline) -> Work:
        """Sort out a timeline's spans."""
        pieces: dict[Lane, list[Span]] = {
            lane: innermost([s for s in timeline.spans if s.lane == lane]) for lane in LANES
        }
        host, device = pieces["host"], pieces["device"]
        grammar = _merged(piece for piece in host if piece.stage in GRAMMAR_STAGES)
        return cls(
            forward=_merged(piece for piece in device if piece.stage == FORWARD),
            busy=_merged(piece for piece in device if piece.stage not in GRAMMAR_STAGES),
            grammar=grammar,
            aside=outside(_merged(piece for piece in device if piece.stage in GRAMMAR_STAGES), grammar),
            pieces=pieces,
        )

    @property
    def overlap(self) -> list[Interval]:
        """The host's grammar work while the device worked."""
        return common(self.grammar, self.busy)

    @property
    def exposed(self) -> list[Interval]:
        """All other grammar work."""
        return merged([*outside(self.grammar, self.busy), *self.aside])


def _merged(spans: Iterable[Span]) -> list[Interval]:
    return merged((span.begin, span.end) for span in spans)
