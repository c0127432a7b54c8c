"""The walk of a chain by a matcher that fills a whole tree in one native call.

The native call writes row i for node i, so that the rows of a chain's legal beginning lie next to each other as
they are. Behind a branch live and dead rows would mix: closing the gaps, and the rows that are written for dead
nodes, cost more than the native call saves, so trees are walked node by node (see `grammar.walk`).
"""

from __future__ import annotations

from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.walk import ENDED, LIVE, Ends, nothing_legal
from specgrammar.protocols.abilities import SupportsTreeFill


def fits_native_walk(nodes: RequestNodes, ends: Ends) -> bool:
    """Whether native code may see this tree and does well: a chain of drafts, all ids tokens or padding.

    In a valid tree links lead forward and to each node from one place, so one whose last node alone has no
    child is a chain.
    """
    tokens = nodes.tokens
    last = len(tokens) - 1
    return (
        last > 0 and nodes.next_token.index(-1) == last and max(tokens) < ends.vocab_size and min(tokens) >= -1
    )


def walk_natively(matcher: SupportsTreeFill, nodes: RequestNodes, rows: MaskRows, ends: Ends) -> None:
    """Fill the rows of a request's chain and write statuses and owners, as `walk.walk_engaged` does.

    Args:
        matcher: the grammar behind the root's token.
        nodes: a valid tree for which `fits_native_walk`.
        rows: the next `len(nodes.tokens)` rows of the compact layout are free: they are all written.
            In the dense layout rows of nodes that are not live become all ones.
        ends: stop ids end a path.

    Raises:
        DeadEndError: nothing is legal behind the root.
        MatcherError: the backend failed.
    """
    first, tokens, _, _, tree = nodes
    bitmask, status, words, take = rows.bitmask, rows.statuses, rows.words, rows.take
    end = first + len(tokens)
    base = first if rows.dense else rows.next_row
    part = slice(first, end)
    matcher.fill_tree(
        tree.draft_tokens[part],
        tree.retrieve_next_token[part],
        tree.retrieve_next_sibling[part],
        bitmask,
        base,
    )
    row = base
    for node, token in enumerate(tokens):
        if node:  # the root's own token is not looked at
            if token < 0 or not words[row, token >> 5] >> (token & 31) & 1:
                break
            if token in ends.stop_ids:
                status[first + node] = ENDED
                break
        status[first + node] = LIVE
        row = take(first + node)
    if rows.is_empty(row):  # the last one; the others allow what follows
        if row == base:
            raise nothing_legal()
        status[first + row - base] = ENDED
    if rows.dense:
        for node in range(first, end):
            if status[node] != LIVE:
                bitmask[node] = -1
