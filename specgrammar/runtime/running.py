"""A request in flight: what a step sees of it, and what comes out of it in the end."""

from __future__ import annotations

from dataclasses import dataclass

from specgrammar.protocols.spec import RequestView
from specgrammar.runtime.ledger import Entry
from specgrammar.runtime.request import Request, RequestOutput


@dataclass(frozen=True)
class Running:
    """A request in flight.

    Attributes:
        request: as it was added.
        entry: its books.
        weakened: JSON Schema keywords that are not enforced.
    """

    request: Request
    entry: Entry
    weakened: tuple[str, ...]

    def num_left(self, is_in_flight: bool) -> int:
        """How many tokens it may still commit, at most; a step in flight commits one at least."""
        limit = self.entry.session.stops.max_new_tokens
        assert limit is not None
        return limit - len(self.entry.session.output) - is_in_flight

    def view(self, is_in_flight: bool, shows_grammar: bool) -> RequestView:
        """What a producer and the target see of it.

        Args:
            is_in_flight: whether a step that it takes part in is not resolved.
            shows_grammar: whether the producer reads where its grammar stands.
        """
        request, entry = self.request, self.entry
        return RequestView(
            request.request_id,
            entry.tokens,
            entry.num_prompt_tokens,
            max(0, self.num_left(is_in_flight) - 1),
            request.sampling,
            entry.session if shows_grammar and entry.session.cursor is not None else None,
        )

    def output(self) -> RequestOutput:
        """What it comes out with; its session has finished."""
        request, entry, session = self.request, self.entry, self.entry.session
        assert session.finish is not None
        return RequestOutput(
            request.request_id,
            session.text,
            tuple(session.output),
            session.finish,
            None if session.error is None else str(session.error),
            entry.num_verify_steps,
            self.weakened,
            None if session.cursor is None else session.engaged,
            tuple(entry.logprobs) if request.logprobs else None,
        )
