"""The rows of one request's chain of drafts, in an engine's buffer.

The tree walks of `specgrammar.grammar` find out which nodes are legal. vLLM's drafts are cut to their legal
prefix before they are scheduled, so that is known here, and one native call per request is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.cursor import Cursor
from specgrammar.grammar.native_batch import NativeBatch, packed
from specgrammar.grammar.native_walk import walk_batch
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.walk import LIVE, nothing_legal
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.trees.tree import HostTree


def fill_chain(
    session: GrammarSession, drafts: Sequence[int], ends_it: bool, bitmask: NDArray[np.int32], row: int
) -> bool:
    """Fill a row before each draft, and the row behind the last one; leaves the grammar as it was.

    Args:
        session: its grammar is engaged, at the committed state.
        drafts: legal from here, one after the other.
        ends_it: the last draft is a stop token; behind it the row becomes all ones, as vLLM has it.
        bitmask: C-contiguous, writeable int32 `[rows, num_words]`.
        row: of the first draft; `len(drafts) + 1` rows are written.

    Returns:
        Whether all rows restrict what the grammar does. Where it cannot go on behind the last draft that row is
        all ones, and the request fails there.

    Raises:
        DeadEndError: nothing is legal at the committed state.
        MatcherError: the backend failed, or there are too few rows.
    """
    cursor = session.cursor
    assert cursor is not None
    last = row + len(drafts)
    inner = drafts[:-1] if ends_it else drafts
    native = cursor.native_calls()
    goes_on = (
        _fill(cursor, inner, bitmask, row)
        if native is None
        else _fill_natively(session, native, inner, bitmask[row:])
    )
    if ends_it:
        bitmask[last] = -1
        return True
    if not goes_on:
        if not drafts:
            raise nothing_legal()
        bitmask[last] = -1
    return goes_on


def _fill_natively(
    session: GrammarSession, native: NativeCalls, drafts: Sequence[int], bitmask: NDArray[np.int32]
) -> bool:
    """Fill rows from the first on; whether something is legal behind the last draft."""
    rows = MaskRows(bitmask, len(drafts) + 1)
    batch = NativeBatch(HostTree.from_chains([[0, *drafts]]), session.vocabulary, [packed(native)])
    walk_batch(batch, rows)
    for _, error in batch.failures():
        raise error
    return rows.statuses[len(drafts)] == LIVE


def _fill(cursor: Cursor, drafts: Sequence[int], bitmask: NDArray[np.int32], row: int) -> bool:
    """The same for a matcher that only Python can move, from a row on."""
    calls = cursor.walk_calls(bitmask)
    calls.fill(row)
    num_steps = 0
    try:
        for token in drafts:
            calls.accept(token)
            num_steps += 1
            calls.fill(row + num_steps)
    finally:
        if num_steps:
            calls.rollback(num_steps)
    last = row + len(drafts)
    return bool(bitmask.item(last, 0) or bitmask[last].any())
