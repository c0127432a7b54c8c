"""The walk of a matcher that fills a whole tree in one native call.

The native call writes row i for node i. What each node is follows from the rows: a child is legal where its
bit is set in its parent's row. In the compact layout live rows then close up, in order of the nodes, so that
a row never moves onto one that is still to be read.
"""

from __future__ import annotations

from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.walk import ENDED, LIVE, Ends, nothing_legal
from specgrammar.protocols.abilities import SupportsTreeFill


def fits_native_walk(nodes: RequestNodes, ends: Ends) -> bool:
    """Whether native code may see this tree: it has drafts, and all ids are tokens or padding."""
    tokens = nodes.tokens
    return len(tokens) > 1 and max(tokens) < ends.vocab_size and min(tokens) >= -1


def walk_natively(matcher: SupportsTreeFill, nodes: RequestNodes, rows: MaskRows, ends: Ends) -> None:
    """Fill the rows of a request's tree and write statuses and owners, as `walk.walk_engaged` does.

    Args:
        matcher: the grammar behind the root's token.
        nodes: a valid tree for which `fits_native_walk`.
        rows: the next `len(nodes.tokens)` rows of the compact layout are free: they hold all nodes' rows first.
            In the dense layout rows of nodes that are not live become all ones.
        ends: stop ids end a path.

    Raises:
        DeadEndError: nothing is legal behind the root.
        MatcherError: the backend failed.
    """
    first, tokens, next_token, next_sibling, tree = nodes
    num_nodes = len(tokens)
    bitmask, status, word_of, take = rows.bitmask, rows.statuses, rows.bitmask.item, rows.take
    base = first if rows.dense else rows.next_row
    part = slice(first, first + num_nodes)
    matcher.fill_tree(
        tree.draft_tokens[part],
        tree.retrieve_next_token[part],
        tree.retrieve_next_sibling[part],
        bitmask,
        base,
    )
    legal = [False] * num_nodes
    legal[0] = True
    for node in range(num_nodes):
        if not legal[node]:
            continue
        row = take(first + node)
        if row != base + node:
            bitmask[row] = bitmask[base + node]
        if not word_of(row, 0) and rows.is_empty(row):
            if node == 0:
                raise nothing_legal()
            status[first + node] = ENDED
            continue
        status[first + node] = LIVE
        child = next_token[node]
        while child >= 0:
            token = tokens[child]
            if word_of(row, token >> 5) >> (token & 31) & 1:
                if token in ends.stop_ids:
                    status[first + child] = ENDED
                else:
                    legal[child] = True
            child = next_sibling[child]
    if rows.dense:
        for node in range(first, first + num_nodes):
            if status[node] != LIVE:
                bitmask[node] = -1
