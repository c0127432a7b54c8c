"""Walking the trees of a batch, one request after the other or runs of requests side by side.

Whatever a backend raises ends the request that it raised for, with its reason, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specgrammar.errors import MatcherError, RequestError, TreeError
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.workers import FillWorkers
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession


def fill_rows(
    sessions: Sequence[GrammarSession], tree: HostTree, rows: MaskRows, workers: FillWorkers | None = None
) -> None:
    """Walk every request's tree into `rows`.

    Args:
        sessions: one per request of the tree, in its order.
        tree: the batch's trees.
        rows: where rows, their owners and statuses go.
        workers: threads to share the requests among; the sessions' backends must be thread-safe.
    """
    validate_tree(tree)
    if len(sessions) != len(tree.cu_nodes) - 1:
        raise TreeError(f"{len(sessions)} sessions for a tree of {len(tree.cu_nodes) - 1} requests")
    rows.begin(tree)
    requests = list(zip(sessions, RequestNodes.of(tree), strict=True))
    if workers is None:
        fill_alone(requests, rows)
    else:
        fill_side_by_side(requests, rows, workers, len(tree.draft_tokens))


Requests = Sequence[tuple["GrammarSession", RequestNodes]]

_RUNS_PER_THREAD = 4
"""Requests differ by a factor of ten: who is done early takes one more. Each run is a copy to upload."""


def fill_alone(requests: Requests, rows: MaskRows) -> None:
    """Fill one request after the other; the nodes of one that fails are dead."""
    for session, nodes in requests:
        try:
            session.walk(nodes, rows)
        except Exception as error:
            session.fail(as_request_error(error))
            rows.drop(nodes)


def fill_side_by_side(requests: Requests, rows: MaskRows, workers: FillWorkers, num_nodes: int) -> None:
    """Fill runs of requests on several threads; each run has the rows from its first node's number on."""
    num_threads = min(workers.num_threads(num_nodes), len(requests))
    num_runs = 1 if num_threads == 1 else num_threads * _RUNS_PER_THREAD
    jobs: list[Callable[[], None]] = []
    begin = 0
    for run in range(num_runs):
        end = begin
        while end < len(requests) and requests[end][1].first < num_nodes * (run + 1) // num_runs:
            end += 1
        if end > begin:
            part = rows if begin == 0 else rows.part(requests[begin][1].first)
            jobs.append(partial(fill_alone, requests[begin:end], part))
        begin = end
    if jobs:
        workers.run(jobs, num_threads, num_nodes)


def as_request_error(error: Exception) -> RequestError:
    """What ends a request: the error itself, or what a backend raised as a MatcherError."""
    if isinstance(error, RequestError):
        return error
    return MatcherError(f"the grammar backend raised {type(error).__name__}: {error}")
