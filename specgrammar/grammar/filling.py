"""Walking the trees of a batch, in one native call where the backend allows it.

Whatever a backend raises ends the request that it raised for, with its reason, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specgrammar.errors import MatcherError, RequestError, TreeError
from specgrammar.grammar.native_walk import walk_natively
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.workers import FillWorkers
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession


def fill_rows(
    sessions: Sequence[GrammarSession], tree: HostTree, rows: MaskRows, workers: FillWorkers | None = None
) -> None:
    """Walk every request's tree into `rows`; the nodes of one that fails are dead.

    Args:
        sessions: one per request of the tree, in its order.
        tree: the batch's trees.
        rows: where rows, their owners and statuses go.
        workers: threads to share the requests among; the sessions' backends must be thread-safe.
    """
    validate_tree(tree)
    if len(sessions) != len(tree.cu_nodes) - 1:
        raise TreeError(f"{len(sessions)} sessions for a tree of {len(tree.cu_nodes) - 1} requests")
    others = walk_natively(sessions, tree, rows, workers)
    if not others:
        return
    rows.begin(tree, others)
    requests = RequestNodes.of(tree)
    for number in others:
        session, nodes = sessions[number], requests[number]
        try:
            session.walk(nodes, rows)
        except Exception as error:
            session.fail(as_request_error(error))
            rows.drop(nodes)


def as_request_error(error: Exception) -> RequestError:
    """What ends a request: the error itself, or what a backend raised as a MatcherError."""
    if isinstance(error, RequestError):
        return error
    return MatcherError(f"the grammar backend raised {type(error).__name__}: {error}")
