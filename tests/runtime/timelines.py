"""Timelines whose numbers are worked out by hand."""

from __future__ import annotations

from typing import Any

from specgrammar.runtime.timeline import Timeline

FACTS: dict[str, Any] = {
    "algorithm": "ngram",
    "backend": "xgrammar",
    "device": "cpu (InlineDevice)",
    "policy": "eager",
    "supports_grammar_overlap": False,
    "needs": "history",
}


def regular(num_steps: int = 3, *, pause_ms: float = 0.0, device_drafts: bool = False) -> Timeline:
    """Equal steps, in ms from the begin of each:

        host    propose 0-1, launch 1-2, barrier 2-3 and resolve 3-3.5 inside build 2-5, upload 5-5.5,
                wait 5.5-8.5, apply 8.5-9, accept 9-10, and as long as `pause_ms` nothing
        device  forward 1.5-8.5, and where asked draft 9-10

    Grammar 3.5 ms, of it 3 under the forward; bubble 3 (2 with drafts); step 10, the pause not counted.
    """
    timeline = Timeline(dict(FACTS))
    for step in range(num_steps):
        begin = 5_000.0 + step * (10 + pause_ms)
        for lane, stage, first, last in (
            ("host", "propose", 0.0, 1.0),
            ("host", "launch", 1.0, 2.0),
            ("host", "barrier", 2.0, 3.0),
            ("host", "resolve", 3.0, 3.5),
            ("host", "build", 2.0, 5.0),
            ("host", "upload", 5.0, 5.5),
            ("device", "forward", 1.5, 8.5),
            ("host", "wait", 5.5, 8.5),
            ("host", "apply", 8.5, 9.0),
            ("host", "accept", 9.0, 10.0),
            ("device", "draft", 9.0, 10.0),
        ):
            if stage != "draft" or device_drafts:
                timeline.add(lane, stage, (begin + first) / 1e3, (begin + last) / 1e3)  # type: ignore[arg-type]
        timeline.end_step((begin + 10 + pause_ms) / 1e3)
    return timeline
