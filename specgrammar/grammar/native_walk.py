"""The walk of a request's tree by a matcher that fills the rows of all its nodes in one native call.

The native call writes row i for node i. What each node is follows from these rows. Where dead nodes have left
gaps, the live rows behind them close up while they are still in the cache: the next request's rows lie next to
them, and only live rows are uploaded. One call for a tree lets other threads go on meanwhile, which many short
ones do not: the interpreter is handed over at each of them.
"""

from __future__ import annotations

from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.walk import ENDED, LIVE, Ends, nothing_legal
from specgrammar.protocols.abilities import SupportsTreeFill


def walk_natively(matcher: SupportsTreeFill, nodes: RequestNodes, rows: MaskRows, ends: Ends) -> None:
    """Fill the rows of a request's tree and write statuses and owners, as `walk.walk_engaged` does.

    Args:
        matcher: the grammar behind the root's token.
        nodes: a valid tree whose tokens all are ids of the vocabulary, or padding.
        rows: the next `len(nodes.tokens)` rows of the compact layout are free: they are all written.
            In the dense layout rows of nodes that are not live become all ones.
        ends: stop ids end a path.

    Raises:
        DeadEndError: nothing is legal behind the root.
        MatcherError: the backend failed.
    """
    first, tokens, next_token, next_sibling, tree = nodes
    part = slice(first, first + len(tokens))
    base = first if rows.dense else rows.next_row
    matcher.fill_tree(
        tree.draft_tokens[part],
        tree.retrieve_next_token[part],
        tree.retrieve_next_sibling[part],
        rows.bitmask,
        base,
    )
    status, words, stop_ids = rows.statuses, rows.words, ends.stop_ids
    live = [0]  # level by level: it grows while it is gone through
    for node in live:
        row = base + node
        barren = True
        child = next_token[node]
        while child >= 0:
            token = tokens[child]
            if words[row, token >> 5] >> (token & 31) & 1:
                barren = False
                if token in stop_ids:
                    status[first + child] = ENDED
                else:
                    live.append(child)
            child = next_sibling[child]
        if barren and rows.is_empty(row):
            if not node:
                raise nothing_legal()
            status[first + node] = ENDED
        else:
            status[first + node] = LIVE
    live.sort()
    rows.take_filled(first, live)
    if rows.dense:
        for index in range(first, part.stop):
            if status[index] != LIVE:
                rows.bitmask[index] = -1
