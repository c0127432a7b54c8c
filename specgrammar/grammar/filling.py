"""Driving walks: each names its next row, and the row is filled, alone or with those of other requests.

Whatever a backend raises ends the request that it raised for, with its reason, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from specgrammar.errors import DeadEndError, MatcherError, RequestError, TreeError
from specgrammar.grammar.calls import NO_CALLS
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.walk import nowhere
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import SupportsBatchFill
from specgrammar.protocols.grammar import GrammarMatcher
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession


class Filling:
    """One request's walk, under the guard of its session.

    Attributes:
        row: the row that is to be filled next, behind an `ask` that returned True.
    """

    def __init__(self, session: GrammarSession, nodes: RequestNodes, rows: MaskRows) -> None:
        """At the root; nothing is written yet."""
        self._session, self._nodes, self._rows = session, nodes, rows
        self._calls, self._walk = NO_CALLS, nowhere()
        self._begun = False
        self.row = -1

    @property
    def matcher(self) -> GrammarMatcher:
        """Stands where `row` is to be filled from."""
        assert self._session.cursor is not None
        return self._session.cursor.matcher

    def run(self) -> None:
        """Fill to the end: the whole tree at once where the matcher can, else row by row."""
        try:
            if self._session.walk_natively(self._nodes, self._rows):
                return
            self._begin()
            fill = self._calls.fill
            for row in self._walk:
                fill(row)
        except Exception as error:
            self.fail(error)

    def ask(self) -> bool:
        """Go on to the next `row` that must be filled; False when the walk is over, or has failed."""
        try:
            self._begin()
            self.row = next(self._walk)
        except StopIteration:
            return False
        except Exception as error:
            self.fail(error)
            return False
        return True

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._calls, self._walk = self._session.walk(self._nodes, self._rows)

    def fill(self) -> bool:
        """Fill `row`; False if that failed."""
        try:
            self._calls.fill(self.row)
        except Exception as error:
            self.fail(error)
            return False
        return True

    def fail(self, error: Exception) -> None:
        """End the request; its nodes are dead. The matcher goes back to where it was, if it still can."""
        with suppress(Exception):
            self._walk.close()
        self._session.fail(as_request_error(error))
        self._rows.drop(self._nodes)


def fill_rows(
    sessions: Sequence[GrammarSession], tree: HostTree, rows: MaskRows, workers: FillWorkers | None = None
) -> None:
    """Walk every request's tree into `rows`.

    Args:
        sessions: one per request of the tree, in its order. Those with `batch_fill` are filled together.
        tree: the batch's trees.
        rows: where rows, their owners and statuses go.
        workers: threads to share the requests among; the sessions' backends must be thread-safe.
    """
    validate_tree(tree)
    if len(sessions) != len(tree.cu_nodes) - 1:
        raise TreeError(f"{len(sessions)} sessions for a tree of {len(tree.cu_nodes) - 1} requests")
    requests = list(zip(sessions, RequestNodes.of(tree), strict=True))
    together = [request for request in requests if request[0].batch_fill is not None]
    alone = [request for request in requests if request[0].batch_fill is None] if together else requests
    fill_together(together, rows)
    if workers is None or together:
        fill_alone(alone, rows)
    else:
        fill_side_by_side(alone, rows, workers, len(tree.draft_tokens))


Requests = Sequence[tuple["GrammarSession", RequestNodes]]


def fill_alone(requests: Requests, rows: MaskRows) -> None:
    """Fill one request after the other."""
    for session, nodes in requests:
        Filling(session, nodes, rows).run()


def fill_side_by_side(requests: Requests, rows: MaskRows, workers: FillWorkers, num_nodes: int) -> None:
    """Fill runs of requests on several threads; each has the rows from its first node's number on."""
    num_threads = min(workers.num_threads(num_nodes), len(requests))
    jobs: list[Callable[[], None]] = []
    begin = 0
    for thread in range(num_threads):
        end = begin
        while end < len(requests) and requests[end][1].first < num_nodes * (thread + 1) // num_threads:
            end += 1
        if end > begin:
            part = rows if begin == 0 else rows.part(requests[begin][1].first)
            jobs.append(partial(fill_alone, requests[begin:end], part))
        begin = end
    if jobs:
        workers.run(jobs, num_nodes)


def fill_together(requests: Requests, rows: MaskRows) -> None:
    """Fill many requests' trees in rounds: the next row of each, in one call per backend."""
    going = [(s.batch_fill, Filling(s, nodes, rows)) for s, nodes in requests if s.batch_fill is not None]
    while going:
        asking: dict[int, tuple[SupportsBatchFill, list[Filling]]] = {}
        for backend, filling in going:
            if filling.ask():
                asking.setdefault(id(backend), (backend, []))[1].append(filling)
        going = []
        for backend, group in asking.values():
            going += [(backend, filling) for filling in _fill_round(backend, group, rows)]


def _fill_round(backend: SupportsBatchFill, group: list[Filling], rows: MaskRows) -> list[Filling]:
    """One row of each; returns those that go on."""
    try:
        matchers = [filling.matcher for filling in group]
        failures = backend.fill_bitmasks(matchers, rows.bitmask, [filling.row for filling in group])
    except Exception:  # whose fault it is, only single calls can tell
        return [filling for filling in group if filling.fill()]
    fatal = {i: error for i, error in failures.items() if not isinstance(error, DeadEndError)}
    for i, error in fatal.items():
        group[i].fail(error)
    return [filling for i, filling in enumerate(group) if i not in fatal]


def as_request_error(error: Exception) -> RequestError:
    """What ends a request: the error itself, or what a backend raised as a MatcherError."""
    if isinstance(error, RequestError):
        return error
    return MatcherError(f"the grammar backend raised {type(error).__name__}: {error}")
