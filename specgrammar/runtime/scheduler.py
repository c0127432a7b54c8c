"""Which steps wait for the step before them and why, and who takes part in the next one.

A step that is published need not be known: the next one can be launched behind it, and its result is waited for
under that one's forward. Whether it is depends on who reads what before a launch. One place decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgrammar.protocols.spec import DecodeBatch, Needs
from specgrammar.protocols.staging import Device
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.results import PublishedStep
from specgrammar.runtime.running import Running
from specgrammar.runtime.trace import Trace


def grammar_needs_sync(queued: PublishedStep | None, has_grammar: bool, supports_grammar_overlap: bool) -> bool:
    """Whether the grammar of a step that is not resolved has to move before the next decode step is launched.

    The rule is sglang's (`is_disable_overlap_for_batch`, pull request 32353): where something is queued, a
    grammar is present in the queued batch or the next one, and the algorithm cannot overlap.

    Args:
        queued: the step that has no result yet; it carries `has_grammar` for itself, since its requests may
            have left. None where nothing is pending.
        has_grammar: whether a request of the next batch has a grammar.
        supports_grammar_overlap: the algorithm's answer.
    """
    if queued is None or supports_grammar_overlap:
        return False
    return has_grammar or queued.has_grammar


@dataclass(frozen=True)
class StepRules:
    """What the next step of an engine waits for: its parts say.

    Attributes:
        needs: the producer's.
        supports_grammar_overlap: the algorithm's.
        supports_unresolved: the target's.
        max_nodes: of a draft tree; a target bounds a path by it.
        max_length: most tokens of a request; None for no limit.
    """

    needs: Needs
    supports_grammar_overlap: bool
    supports_unresolved: bool
    max_nodes: int
    max_length: int | None

    def why_wait(self, queued: PublishedStep | None, longest: int, has_grammar: bool) -> str:
        """Why the queued step is resolved before the next one is launched; empty where it is not.

        Args:
            queued: the step without a result; None where there is none.
            longest: most tokens that a request of the next batch is known to have.
            has_grammar: whether one of them has a grammar.
        """
        if queued is None:
            return ""
        if queued.is_known:
            return "its result is there"
        if self.needs != "nothing":
            return f"drafts need the {self.needs}"
        if not self.supports_unresolved:
            return "the target needs the histories"
        if grammar_needs_sync(queued, has_grammar, self.supports_grammar_overlap):
            return "the algorithm does not overlap with a grammar"
        if self.max_length is not None and longest + queued.max_tokens + self.max_nodes - 1 > self.max_length:
            return "a request is near its longest length"
        return ""


class Scheduler:
    """Keeps the step in flight, and makes the batch of the next one.

    Attributes:
        published: the last step that was launched; None before the first.
    """

    def __init__(self, rules: StepRules, ledger: Ledger, device: Device, trace: Trace) -> None:
        """Nothing is in flight."""
        self.published: PublishedStep | None = None
        self._rules, self._ledger, self._device, self._trace = rules, ledger, device, trace

    @property
    def queued(self) -> PublishedStep | None:
        """The step whose result the ledger does not have yet."""
        if self._ledger.is_resolved:
            self.published = None
        return self.published

    def resolve_where_needed(self, running: Mapping[str, Running]) -> None:
        """Wait for the step in flight where the next step of these requests cannot be launched behind it."""
        if (queued := self.queued) is None or not running:
            return
        entries = [one.entry for one in running.values()]
        longest = max(len(entry.tokens) for entry in entries)
        has_grammar = any(entry.session.cursor is not None for entry in entries)
        if self._rules.why_wait(queued, longest, has_grammar):
            with self._trace.span("wait"):
                self._ledger.resolve()

    def batch(self, step: int, running: Mapping[str, Running]) -> DecodeBatch:
        """Who takes part in the next step: all but those that are over with the step in flight."""
        queued = self.queued
        in_flight = {name for name, one in running.items() if queued is not None and is_in(queued, one)}
        views = tuple(
            one.view(name in in_flight, self._rules.needs == "grammar")
            for name, one in running.items()
            if one.entry.session.finish is None and one.num_left(name in in_flight) > 0
        )
        rows = [view.request_id if view.request_id in in_flight else None for view in views]
        if queued is None or not any(rows):
            return DecodeBatch(step, views)
        return DecodeBatch(step, views, queued.behind(rows, self._device.torch_device))


def is_in(step: PublishedStep, running: Running) -> bool:
    """Whether a request takes part in a step: it itself, and not one that had its id before."""
    return running.entry.joined <= step.step and running.request.request_id in step.request_ids
