"""Grammars moved along what a target drew already, by one native call (`native/follow.cpp`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.draws import Draws
from specgrammar.grammar.native_batch import NativeBatch, address
from specgrammar.grammar.native_walk import check_rows
from specgrammar.grammar.rows import MaskRows
from specgrammar.native.library import core
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.grammar.workers import FillWorkers

_REFUSED, _HAS_ROW = 1, 2
"""Why a walk is stuck; see `native/follow.h`."""


class Stuck(NamedTuple):
    """A request whose walk goes on otherwise."""

    number: int
    """Which request of the batch."""
    node: int
    """Where (flat): nothing is chosen there yet."""
    is_refused: bool = False
    """None of the draws that are known there is legal."""
    has_row: bool = False
    """Likewise, and a row of the node was filled: its path ends with the node, behind which no token is yet."""


class Followed(NamedTuple):
    """How walks went."""

    others: list[int]
    """The requests that native code cannot follow."""
    stuck: list[Stuck]
    """Walks that are not over, by request."""
    num_rows: int = 0
    """Rows from which refused draws were made again, or are to be."""


def follow_natively(
    sessions: Sequence[GrammarSession | None],
    tree: HostTree,
    draws: Draws,
    paths: Paths,
    status: NDArray[np.int8],
    take_rows: Callable[[], MaskRows] | None = None,
    workers: FillWorkers | None = None,
) -> Followed:
    """Move the grammars that native code can move along the draws, and write where they went.

    A draw that is illegal gives way to the next best that is legal; a walk is stuck where none is known. A path
    ends behind a stop token, over which the grammar is not moved. One that fails is over, and ends its request;
    its path is empty. Of requests that share a matcher the first is followed.

    Args:
        sessions: one per request of the tree, in its order; None for one that is not to be moved.
        tree: of the whole batch; valid.
        draws: see there.
        paths: all of them begin here; those of requests that are not followed stay empty.
        status: int8 `[num_nodes]`; those of the requests that are followed are written, as by `open_status`.
        take_rows: gives compact rows, none handed out, with room for one of each request: filled where none of
            the draws that are known is legal, unless nothing is. Their statuses are not written.
        workers: threads to share the requests among, where measurement says that it pays.

    Raises:
        MatcherError: the rows are not to contract, or too few; nothing was written.
    """
    library = core()
    vocabulary = next((session.vocabulary for session in sessions if session is not None), None)
    if library is None or vocabulary is None:
        paths.begin(range(tree.bs))
        return Followed(list(range(tree.bs)), [])
    natives = [s.native_calls() if s is not None and s.vocabulary is vocabulary else None for s in sessions]
    num_roused = workers.rouse(len(sessions), "follow") if workers is not None and any(natives) else None
    batch = NativeBatch(tree, vocabulary, natives)
    others = batch.others()
    paths.begin(others)
    if not (numbers := batch.numbers):
        return Followed(others, [])
    rows = None if take_rows is None else take_rows()
    arguments = [
        *(address(draws.best), draws.has_short_ids, draws.best.shape[1], address(draws.num_sure)),
        *_logits(draws.logits, vocabulary.vocab_size),
        *_rows(rows, len(numbers)),
        *(address(paths.records), paths.records.shape[1], address(status)),
    ]
    num_rows = 0

    def call(num_threads: int = 1, pool: int | None = None) -> int:
        nonlocal num_rows
        num_rows = library.specgrammar_follow(batch.address, pool, num_threads, *arguments)
        return len(numbers)

    call() if workers is None else workers.run(call, len(sessions), "follow", num_roused)
    if rows is not None:
        rows.num_rows = num_rows
    for index, error in batch.failures():
        if (session := sessions[numbers[index]]) is not None:
            session.fail(error)
    for number in numbers:
        if (session := sessions[number]) is not None:
            session.followed(paths, number)
    why = paths.why.tolist()
    stuck = [
        Stuck(number, paths.roots[number] + node, why[number] == _REFUSED, why[number] == _HAS_ROW)
        for number, node in enumerate(paths.stuck.tolist())
        if node >= 0
    ]
    return Followed(others, stuck, num_rows)


def _rows(rows: MaskRows | None, num: int) -> tuple[int | None, int, int | None]:
    """Where they are, how long one is, and where their owners are; MatcherError unless there are `num`."""
    if rows is None:
        return None, 0, None
    check_rows(rows, num)
    return address(rows.bitmask), rows.bitmask.shape[1], address(rows.owners)


def _logits(logits: torch.Tensor | None, vocab_size: int) -> tuple[int | None, int, int]:
    """Where they are, how long a row is, and how many tokens of it may be drawn."""
    if logits is None:
        return None, 0, 0
    return logits.data_ptr(), logits.stride(0), min(logits.shape[1], vocab_size)
