"""Grammars moved along what a target drew already, by one native call (`native/follow.cpp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.native_batch import NativeBatch, address
from specgrammar.native.library import core
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.grammar.workers import FillWorkers


class Draws(NamedTuple):
    """What the target drew at every node of a batch."""

    drawn: NDArray[np.int64]
    """`[num_nodes]`, -1 for none."""
    best: NDArray[np.int64]
    """`[num_nodes, num_best]`: the tokens that would be drawn if those before them were forbidden."""
    num_sure: NDArray[np.int64]
    """`[num_nodes]`: how many of `best` come in this order for certain; the first of them is `drawn`."""


class Followed(NamedTuple):
    """How far a request's grammar was moved."""

    number: int
    """Which request of the batch."""
    nodes: list[int]
    """Its path from the root on, flat."""
    tokens: list[int]
    """The choice at each of them, which the grammar was moved over."""
    stuck: int
    """The node (flat) at which the walk goes on otherwise: nothing is chosen there yet. -1 where it is over."""


def follow_natively(
    sessions: Mapping[int, GrammarSession],
    tree: HostTree,
    status: NDArray[np.int8],
    draws: Draws,
    workers: FillWorkers | None = None,
) -> list[Followed]:
    """Move the grammars that native code can move along the draws.

    A draw that is illegal gives way to the next best that is legal. A walk is stuck where none is known, and
    where a stop token is drawn, or an id outside the vocabulary. One that fails is over, and ends its request.

    Args:
        sessions: by their request's number.
        tree: of the whole batch; valid.
        status: int8 `[num_nodes]`: only drafts that are FREE are gone through.
        draws: see there.
        workers: threads to share the requests among, where measurement says that it pays.

    Returns:
        The requests that were followed; the others are as they were. Of requests that share a matcher the first
        is followed.
    """
    vocabulary = next((session.vocabulary for session in sessions.values()), None)
    if vocabulary is None:
        return []
    batch = NativeBatch(tree, vocabulary)
    for number, session in sessions.items():
        native = session.native_calls()
        if native is not None and session.vocabulary is vocabulary:
            batch.add(number, native)
    library = core()
    if library is None or not batch.numbers:
        return []
    nodes, tokens = np.empty(len(tree.draft_tokens), np.int64), np.empty(len(tree.draft_tokens), np.int64)
    lengths, stuck = np.empty(len(batch.numbers), np.int64), np.empty(len(batch.numbers), np.int64)
    kept = [np.ascontiguousarray(part) for part in (status, *draws)]

    def call(num_threads: int = 1, pool: int | None = None) -> int:
        library.specgrammar_follow(
            *batch.inputs(num_threads, pool),
            *(address(kept[0]), address(kept[1]), address(kept[2]), kept[2].shape[1], address(kept[3])),
            *map(address, (nodes, tokens, lengths, stuck)),
            *batch.results(),
        )
        return len(batch.numbers)

    call() if workers is None else workers.run(call, len(batch.numbers), "follow")
    for number, error in batch.failures():
        sessions[number].fail(error)
    all_nodes, all_tokens, starts = nodes.tolist(), tokens.tolist(), tree.cu_nodes.data
    found = list[Followed]()
    for number, length, node in zip(batch.numbers, lengths.tolist(), stuck.tolist(), strict=True):
        first, session = starts[number], sessions[number]
        chosen = all_tokens[first : first + length]
        if session.finish is None:
            try:
                session.followed(chosen)
            except Exception as error:
                session.fail(as_request_error(error))
        if session.finish is not None:
            found.append(Followed(number, [], [], -1))
        else:
            found.append(Followed(number, all_nodes[first : first + length], chosen, node))
    return found
