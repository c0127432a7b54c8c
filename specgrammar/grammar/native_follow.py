"""Grammars moved along what a target drew already, by one native call (`native/follow.cpp`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.native_batch import NativeBatch, address
from specgrammar.native.library import core
from specgrammar.trees.paths import Paths
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.grammar.workers import FillWorkers


class Draws(NamedTuple):
    """What the target drew at every node of a batch."""

    best: NDArray[np.int32]
    """`[num_nodes, num_best]`, C-contiguous: the draw, -1 for none, and behind it what would be drawn if those
    before were forbidden."""
    num_sure: NDArray[np.int32]
    """`[num_nodes]`: how many of `best` come in this order for certain. The draw holds in any case."""


class Stuck(NamedTuple):
    """A request whose walk goes on otherwise."""

    number: int
    """Which request of the batch."""
    node: int
    """Where (flat): nothing is chosen there yet."""
    is_refused: bool
    """None of the draws that are known there is legal."""


def follow_natively(
    sessions: Sequence[GrammarSession | None],
    tree: HostTree,
    draws: Draws,
    paths: Paths,
    workers: FillWorkers | None = None,
) -> list[Stuck]:
    """Move the grammars that native code can move along the draws, and write where they went.

    A draw that is illegal gives way to the next best that is legal. A walk is stuck where none is known, and
    where a stop token is drawn, or an id outside the vocabulary. One that fails is over, and ends its request;
    its path is empty.

    Args:
        sessions: one per request of the tree, in its order; None for one that is not to be moved.
        tree: of the whole batch; valid.
        draws: see there.
        paths: empty ones, which are written to; those of requests that are not followed stay empty.
        workers: threads to share the requests among, where measurement says that it pays.

    Returns:
        The walks that are not over, by request. Those that native code cannot move are stuck at their roots; of
        requests that share a matcher the first is followed.
    """
    library, roots = core(), tree.cu_nodes[:-1]
    vocabulary = next((session.vocabulary for session in sessions if session is not None), None)
    if library is None or vocabulary is None:
        return [Stuck(number, root, False) for number, root in enumerate(roots.tolist())]
    natives = [s.native_calls() if s is not None and s.vocabulary is vocabulary else None for s in sessions]
    num_roused = workers.rouse(len(sessions), "follow") if workers is not None and any(natives) else None
    batch = NativeBatch(tree, vocabulary, natives)
    others = [Stuck(number, int(roots[number]), False) for number in batch.others()]
    if not batch.numbers:
        return others
    num_followed = len(batch.numbers)
    lengths, stuck = np.empty(num_followed, np.int64), np.empty(num_followed, np.int64)
    is_refused = np.empty(num_followed, np.bool_)

    def call(num_threads: int = 1, pool: int | None = None) -> int:
        library.specgrammar_follow(
            *batch.inputs(num_threads, pool),
            *(address(draws.best), draws.best.shape[1], address(draws.num_sure)),
            *map(address, (paths.nodes, paths.tokens, lengths, stuck, is_refused)),
            *batch.results(),
        )
        return num_followed

    call() if workers is None else workers.run(call, len(sessions), "follow", num_roused)
    for index, error in batch.failures():
        lengths[index], stuck[index] = 0, -1
        if (session := sessions[batch.numbers[index]]) is not None:
            session.fail(error)
    paths.lengths[batch.numbers] = lengths
    begins = roots[batch.numbers]
    chosen, ends = paths.tokens.data, (begins + lengths).tolist()
    for number, begin, end in zip(batch.numbers, begins.tolist(), ends, strict=True):
        if begin < end and (session := sessions[number]) is not None:
            session.followed(chosen[begin:end])
    going_on = np.flatnonzero(stuck >= 0).tolist()
    return sorted([*others, *(Stuck(batch.numbers[i], int(stuck[i]), bool(is_refused[i])) for i in going_on)])
