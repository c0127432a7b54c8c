"""Which steps wait for the step before them, and why.

A step that is published need not be known: the next one can be launched behind it, and its result is waited for
under that one's forward. Whether it is depends on who reads what before a launch. One place decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from specgrammar.protocols.spec import Needs
from specgrammar.runtime.results import PublishedStep


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
class StepScheduler:
    """Decides for an engine's parts what the next step waits for.

    Attributes:
        needs: the producer's.
        supports_grammar_overlap: the algorithm's.
        supports_unresolved: the target's.
        max_depth: the longest path of a draft tree.
        max_length: most tokens of a request; None for no limit.
    """

    needs: Needs
    supports_grammar_overlap: bool
    supports_unresolved: bool
    max_depth: int
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
        if queued.done():
            return "its result is there"
        if self.needs != "nothing":
            return f"drafts need the {self.needs}"
        if not self.supports_unresolved:
            return "the target needs the histories"
        if grammar_needs_sync(queued, has_grammar, self.supports_grammar_overlap):
            return "the algorithm does not overlap with a grammar"
        if self.max_length is not None and longest + queued.max_tokens + self.max_depth > self.max_length:
            return "a request is near its longest length"
        return ""
