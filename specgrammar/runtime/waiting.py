"""Requests that have not joined: those whose grammar is compiled may, whoever came before them."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from specgrammar.grammar.compile_service import CompileService, Ticket
from specgrammar.runtime.request import Request

AgreeJoins = Callable[[tuple[int, ...]], Container[int]]
"""Called in each step that finds requests waiting, with the numbers of those that can join here; returns
everybody's, e.g. rank 0's by a broadcast. A replica whose grammar is not ready yet then waits for it."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """A request that has not joined.

    Attributes:
        number: how many were added before it.
        request: the request.
        ticket: for its grammar; None if it has none.
    """

    number: int
    request: Request
    ticket: Ticket | None

    @property
    def can_join(self) -> bool:
        """Whether its grammar is compiled, or known to be broken."""
        return self.ticket is None or self.ticket.done()


class WaitingRequests:
    """An engine's requests that have not joined, in the order in which they came.

    Their grammars are compiled from the start on; each request holds its own until it has joined.
    """

    def __init__(self, compiles: CompileService, agree: AgreeJoins) -> None:
        self._compiles = compiles
        self._agree = agree
        self._num_added = 0
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request and have its grammar compiled."""
        ticket = None if request.grammar is None else self._compiles.submit(request.grammar)
        self._waiting.append(Waiting(self._num_added, request, ticket))
        self._num_added += 1

    def abort(self, request_id: str) -> int:
        """Drop all requests of an id; how many there were. Their grammars go on for others who want them."""
        aborted = [waiting for waiting in self._waiting if waiting.request.request_id == request_id]
        for waiting in aborted:
            self._waiting.remove(waiting)
            if waiting.ticket is not None:
                waiting.ticket.drop()
        return len(aborted)

    def ready(self) -> list[Waiting]:
        """Those that can join, everywhere where there are replicas, in the order in which they came."""
        if not self._waiting:
            return []
        agreed = self._agree(tuple(waiting.number for waiting in self._waiting if waiting.can_join))
        return [waiting for waiting in self._waiting if waiting.number in agreed]

    def leave(self, waiting: Waiting) -> None:
        """Take out one that joins."""
        self._waiting.remove(waiting)

    def wait(self, num_requests: int, timeout_s: float) -> None:
        """Wait until the first few can join, but not longer than the timeout."""
        tickets = [waiting.ticket for waiting in self._waiting[:num_requests] if waiting.ticket is not None]
        self._compiles.wait(tickets, timeout_s)
