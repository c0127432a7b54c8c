"""The trees of a batch walked by one native call, for the requests whose matchers native code can move.

It does what `walk` does (`native/walk.cpp`), without the interpreter between nodes: a call from Python costs as
much as a small fill. Other threads of the interpreter, such as the one that runs a forward, go on meanwhile;
they wait only for the functions of a backend that takes the interpreter's lock there, as llguidance's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from specgrammar.errors import MatcherError
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
    natives = [s.native_calls() if s.vocabulary is vocabulary else None for s in sessions]
    num_threads = workers.rouse(len(tree.draft_tokens)) if workers is not None and any(natives) else None
    batch = NativeBatch(tree, vocabulary, natives)
    if batch.numbers:
        if workers is None:
            walk_batch(batch, rows)
        else:
            work = partial(walk_batch, batch, rows)
            workers.run(work, len(tree.draft_tokens), num_threads=num_threads)
        for index, error in batch.failures():
            sessions[batch.numbers[index]].fail(error)
    return batch.others()


def walk_batch(batch: NativeBatch, rows: MaskRows, num_threads: int = 1, pool: int | None = None) -> int:
    """Fill the rows of a batch's live nodes and write all statuses; returns how many rows were handed out.

    Each matcher is left as it was found. The nodes of a request that fails are dead. In the dense layout no
    rows are handed out, and all nodes count.

    Args:
        batch: the requests.
        rows: see `MaskRows`.
        num_threads: how many share the requests.
        pool: the `NativePool.handle` that has them.

    Raises:
        MatcherError: the rows are not to contract, or too few; nothing was written.
    """
    check_rows(rows, batch.num_nodes)
    library = core()
    assert library is not None, "a matcher has native calls, so there is native code"
    num_before = rows.num_rows
    rows.num_rows = library.specgrammar_walk(
        *(batch.address, pool, num_threads),
        *(address(rows.bitmask), rows.bitmask.shape[1], address(rows.owners), address(rows.status)),
        *(rows.num_rows, rows.dense),
    )
    return len(rows.status) if rows.dense else rows.num_rows - num_before


def check_rows(rows: MaskRows, num_nodes: int) -> None:
    """Raise MatcherError unless there are rows for so many nodes: native code knows addresses alone."""
    num_rows = num_nodes if rows.dense else rows.num_rows + num_nodes
    if not _holds(rows.words, 2, num_rows):
        raise MatcherError(_expected("the bitmask is", rows.bitmask, f"{num_rows}, words"))
    if not rows.dense and not _holds(rows.owners.data, 1, num_rows):
        raise MatcherError(_expected("the rows' owners are", rows.owners, f"{num_rows}"))


def _holds(view: memoryview[int], ndim: int, num_rows: int) -> bool:
    """Views tell it in a third of the time that arrays take."""
    return (
        view.format == "i"
        and view.ndim == ndim
        and view.c_contiguous
        and not view.readonly
        and len(view) >= num_rows
    )


def _expected(what: str, array: NDArray[Any], shape: str) -> str:
    return (
        f"{what} {array.dtype}{list(array.shape)}; expected a C-contiguous, writeable int32 array [>= {shape}]"
    )
