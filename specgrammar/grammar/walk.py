"""The walk: one request's draft tree against the state of its grammar.

It moves the matcher from node to node and fills a row at each; a matcher that native code can move is walked in
`native_walk` instead. A child is legal where its bit is set in its parent's row, so that nothing
illegal is ever offered to a matcher. What is not one of the matcher's own calls is kept to a tenth of the time
here: rows get numbers only when they are filled, so live rows lie next to each other, and those of other nodes
are not written at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specgrammar.errors import DeadEndError
from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.protocols.abilities import WalkCalls
from specgrammar.protocols.grammar import NodeStatus, Vocabulary

# Plain ints: an enum member in the loop costs as much as a native accept.
ENDED, FREE, LIVE = int(NodeStatus.ENDED), int(NodeStatus.FREE), int(NodeStatus.LIVE)


@dataclass(frozen=True)
class Ends:
    """What the walks over one vocabulary need to know of it."""

    vocab_size: int
    stop_ids: frozenset[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Ends:
        """Of a vocabulary."""
        return cls(vocabulary.vocab_size, frozenset(vocabulary.stop_ids))


def walk_engaged(calls: WalkCalls, nodes: RequestNodes, root: int, rows: MaskRows, ends: Ends) -> None:
    """Visit the legal nodes below `root` depth first; leaves the matcher as it was, come what may.

    Iterative, since a chain may be thousands of nodes deep. What lies below an illegal node is not visited.
    A legal token behind which nothing is legal ends its path, as it would in ordinary decoding: it may be
    accepted, and then the request fails.

    Args:
        calls: the grammar behind the root's token.
        nodes: a valid tree (`trees.validate`).
        root: where to start, a local number; its own token is not looked at.
        rows: receives owners and statuses.
        ends: ids outside the vocabulary are illegal, stop ids end a path.

    Raises:
        DeadEndError: nothing is legal behind the request's own root.
        MatcherError: the backend failed.
    """
    first, tokens, next_token, next_sibling = nodes
    take, status, words = rows.take, rows.statuses, rows.words
    vocab_size, stop_ids = ends.vocab_size, ends.stop_ids
    accept, fill, rollback = calls

    row = take(first + root)
    fill(row)
    status[first + root] = LIVE
    path: list[tuple[int, int]] = []  # the nodes that we stand below, each with its parent's row
    num_ahead = 0  # steps that the matcher is ahead of the path: undone at once, when it must move again
    barren = root  # the node that we stand at, while none of its children was legal: its row may be empty
    child = next_token[root]
    try:
        while True:
            while child >= 0:
                token = tokens[child]
                if not (0 <= token < vocab_size and words[row, token >> 5] >> (token & 31) & 1):
                    child = next_sibling[child]
                elif token in stop_ids:
                    status[first + child] = ENDED
                    barren = -1
                    child = next_sibling[child]
                else:
                    if num_ahead:
                        rollback(num_ahead)
                        num_ahead = 0
                    accept(token)
                    path.append((child, row))
                    row = take(first + child)
                    fill(row)
                    status[first + child] = LIVE
                    barren = child
                    child = next_token[child]
            if barren >= 0 and rows.is_empty(row):
                if barren == 0:
                    raise nothing_legal()
                status[first + barren] = ENDED
                rows.disown(row)
            if not path:
                return
            child, row = path.pop()
            num_ahead += 1
            barren = -1
            child = next_sibling[child]
    finally:
        if path or num_ahead:
            rollback(len(path) + num_ahead)


def walk_free(cursor: Cursor | None, nodes: RequestNodes, rows: MaskRows, ends: Ends) -> None:
    """Visit the nodes of a request that no grammar restricts yet; behind a node that opens the gate one does.

    Args:
        cursor: behind the root's token, before its gate; left as it was. None where there is no grammar.
        nodes: a valid tree.
        rows: receives owners and statuses.
        ends: ids outside the vocabulary are illegal, stop ids end a path.
    """
    first, tokens, next_token, next_sibling = nodes
    status = rows.statuses
    status[first] = FREE
    gate = None if cursor is None else cursor.gate
    pending: list[tuple[int, Any]] = [(next_token[0], None if cursor is None else cursor.gate_state)]
    while pending:
        child, state = pending.pop()
        while child >= 0:
            token = tokens[child]
            if token in ends.stop_ids:
                status[first + child] = ENDED
            elif 0 <= token < ends.vocab_size:
                behind: Any = gate.step(state, token) if gate is not None else None
                if cursor is not None and gate is not None and gate.is_open(behind):
                    with cursor.begun(behind):
                        walk_engaged(cursor.walk_calls(rows.bitmask), nodes, child, rows, ends)
                else:
                    status[first + child] = FREE
                    pending.append((next_token[child], behind))
            child = next_sibling[child]


def nothing_legal() -> DeadEndError:
    """The error for a root behind which nothing is legal."""
    return DeadEndError(
        "the grammar admits no token here, not even a stop token; check that something satisfies it and that "
        "this vocabulary can spell it"
    )
