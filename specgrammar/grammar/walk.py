"""The walk: one request's draft tree against the state of its grammar."""

from __future__ import annotations

from specgrammar.errors import DeadEndError
from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.protocols.grammar import NodeStatus, Vocabulary

# Plain ints: an enum member in the loop costs as much as a native accept.
_PADDING, _REJECTED = int(NodeStatus.PADDING), int(NodeStatus.REJECTED)
_ENDED, _FREE, _LIVE = int(NodeStatus.ENDED), int(NodeStatus.FREE), int(NodeStatus.LIVE)


def walk(cursor: Cursor, vocabulary: Vocabulary, nodes: RequestNodes, rows: MaskRows) -> None:
    """Visit every legal node depth first and fill the row of each that the grammar restricts.

    Iterative, since a chain may be thousands of nodes deep. What lies below an illegal node is not visited.
    A node behind which nothing is legal counts as rejected: ordinary decoding would get stuck there, too.
    The cursor is left where it was, come what may.

    Args:
        cursor: the request's grammar, behind the root's token.
        vocabulary: which ids end a request.
        nodes: a valid tree (see `trees.validate`).
        rows: receives rows, their owners and the status of every node; unchanged where this raises.

    Raises:
        DeadEndError: nothing is legal behind the root.
        MatcherError: the backend failed.
    """
    first, tokens, next_token, next_sibling = nodes
    stop_ids = frozenset(vocabulary.stop_ids)
    status = [_REJECTED if token >= 0 else _PADDING for token in tokens]
    live: list[int] = []

    def fill(node: int) -> int:
        if not cursor.engaged:
            return _FREE
        cursor.fill(rows.bitmask, first + node if rows.dense else rows.num_rows + len(live))
        live.append(node)
        return _LIVE

    def visit(node: int) -> int:
        """The node's status; the cursor stands behind its token if there may be children to visit."""
        token = tokens[node]
        if not cursor.step(token):
            return _REJECTED
        if token in stop_ids:
            cursor.back()
            return _ENDED
        try:
            return fill(node)
        except DeadEndError:
            cursor.back()
            return _REJECTED

    mark = cursor.mark()
    path: list[int] = []
    try:
        status[0] = fill(0)
        child = next_token[0]
        while child >= 0 or path:
            if child < 0:  # no further child here: on with the siblings of the node that we stand on
                cursor.back()
                child = next_sibling[path.pop()]
                continue
            status[child] = visit(child)
            if status[child] >= _FREE:
                path.append(child)
                child = next_token[child]
            else:
                child = next_sibling[child]
    finally:
        cursor.restore(mark)
    rows.put(nodes, status, live)
