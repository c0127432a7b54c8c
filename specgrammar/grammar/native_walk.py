"""The trees of a batch walked by one native call, for the requests whose matchers native code can move.

It does what `walk` does (`native/walk.cpp`), without the interpreter between nodes: a call from Python costs as
much as a small fill. Other threads of the interpreter, such as the one that runs a forward, go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specgrammar.grammar.native_batch import NativeBatch, address
from specgrammar.grammar.rows import MaskRows
from specgrammar.native.library import core
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.grammar.workers import FillWorkers


def walk_natively(
    sessions: Sequence[GrammarSession], tree: HostTree, rows: MaskRows, workers: FillWorkers | None
) -> list[int]:
    """Walk the requests that native code can walk; one that fails ends alone, and its nodes are dead.

    Args:
        sessions: one per request of the tree, in its order.
        tree: a valid tree.
        rows: see `MaskRows`.
        workers: threads to share the requests among, where measurement says that it pays.

    Returns:
        The other requests, which are as they were.
    """
    if not sessions:
        return []
    vocabulary = sessions[0].vocabulary
    batch, others = NativeBatch(tree, vocabulary), list[int]()
    for number, session in enumerate(sessions):
        native = session.native_calls()
        if native is None or session.vocabulary is not vocabulary:
            others.append(number)
        else:
            batch.add(number, native)
    if batch.numbers:
        if workers is None:
            walk_batch(batch, rows)
        else:
            workers.run(lambda *threads: walk_batch(batch, rows, *threads), len(tree.draft_tokens))
        for number, error in batch.failures():
            sessions[number].fail(error)
    return others


def walk_batch(batch: NativeBatch, rows: MaskRows, num_threads: int = 1, pool: int | None = None) -> int:
    """Fill the rows of a batch's live nodes and write all statuses; returns how many rows were handed out.

    Each matcher is left as it was found. The nodes of a request that fails are dead. In the dense layout no
    rows are handed out, and all nodes count.

    Args:
        batch: the requests.
        rows: see `MaskRows`.
        num_threads: how many share the requests.
        pool: the `NativePool.handle` that has them.
    """
    library = core()
    assert library is not None, "a matcher has native calls, so there is native code"
    num_before = rows.num_rows
    rows.num_rows = library.specgrammar_walk(
        *batch.inputs(num_threads, pool),
        *(address(rows.bitmask), rows.bitmask.shape[1], address(rows.owners), address(rows.status)),
        *(rows.num_rows, rows.dense),
        *batch.results(),
    )
    return len(rows.status) if rows.dense else rows.num_rows - num_before
