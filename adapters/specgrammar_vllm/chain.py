"""The rows of one request's chain of drafts, in an engine's buffer.

The tree walks of `specgrammar.grammar` find out which nodes are legal. vLLM's drafts are cut to their legal
prefix before they are scheduled, so that is known here, and one native call per request is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.walk import nothing_legal

Links = tuple[NDArray[np.int64], NDArray[np.int64]]


def fill_chain(
    cursor: Cursor, drafts: Sequence[int], ends_it: bool, bitmask: NDArray[np.int32], row: int
) -> bool:
    """Fill a row before each draft, and the row behind the last one; leaves the grammar as it was.

    Args:
        cursor: engaged, at the committed state.
        drafts: legal from here, one after the other.
        ends_it: the last draft is a stop token; behind it the row becomes all ones, as vLLM has it.
        bitmask: C-contiguous, writeable int32 `[rows, num_words]`.
        row: of the first draft; `len(drafts) + 1` rows are written.

    Returns:
        Whether all rows restrict what the grammar does. Where it cannot go on behind the last draft that row is
        all ones, and the request fails there.

    Raises:
        DeadEndError: nothing is legal at the committed state.
        MatcherError: the backend failed.
    """
    last = row + len(drafts)
    inner = drafts[:-1] if ends_it else drafts
    if cursor.tree_filler is not None and inner:
        cursor.tree_filler.fill_tree(
            np.array([0, *inner], dtype=np.int64), *_chain_links(len(inner) + 1), bitmask, row
        )
    else:
        calls = cursor.walk_calls(bitmask)
        calls.fill(row)
        num_steps = 0
        try:
            for token in inner:
                calls.accept(token)
                num_steps += 1
                calls.fill(row + num_steps)
        finally:
            if num_steps:
                calls.rollback(num_steps)
    if ends_it:
        bitmask[last] = -1
    elif not (bitmask.item(last, 0) or bitmask[last].any()):
        if not drafts:
            raise nothing_legal()
        bitmask[last] = -1
        return False
    return True


@cache
def _chain_links(num_nodes: int) -> Links:
    """First children and next siblings of a chain."""
    children = np.arange(1, num_nodes + 1, dtype=np.int64)
    children[-1] = -1
    return children, np.full(num_nodes, -1, dtype=np.int64)
