"""The trees of a batch walked by one native call, for the requests whose matchers native code can move.

It does what `walk` does (`native/walk.cpp`), without the interpreter between nodes: a call from Python costs as
much as a small fill. Other threads of the interpreter, such as the one that runs a forward, go on meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import MatcherError, RequestError
from specgrammar.grammar.calls import refuses_its_own
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.walk import nothing_legal
from specgrammar.native.library import REASON_SIZE, core
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession
    from specgrammar.grammar.workers import FillWorkers

_WALKED, _NOTHING_LEGAL, _REFUSED = 0, 1, 2
"""How a walk may end; see `native/walk.h`."""


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
    others: list[int] = []
    walks = NativeWalks(tree, rows)
    for number, session in enumerate(sessions):
        native = session.native_calls()
        if native is None or session.vocabulary is not sessions[0].vocabulary:
            others.append(number)
        else:
            walks.add(number, native)
    if len(others) < len(sessions):
        vocabulary = sessions[0].vocabulary
        if workers is None:
            walks.run(vocabulary)
        else:
            workers.run(lambda *threads: walks.run(vocabulary, *threads), len(tree.draft_tokens))
        for number, error in walks.failures():
            sessions[number].fail(error)
    return others


class NativeWalks:
    """Requests of a batch that native code walks, and what became of them."""

    def __init__(self, tree: HostTree, rows: MaskRows) -> None:
        """No request yet.

        Args:
            tree: of the whole batch; valid.
            rows: see `MaskRows`.
        """
        self._tree, self._rows = tree, rows
        self._numbers, self._calls, self._matchers = array("q"), array("Q"), array("Q")

    def add(self, number: int, native: NativeCalls) -> None:
        """Walk a request of the batch, whose matcher stands behind its root's token."""
        self._numbers.append(number)
        self._calls.append(native.calls)
        self._matchers.append(native.matcher)

    def run(self, vocabulary: Vocabulary, num_threads: int = 1, pool: int | None = None) -> None:
        """Walk all of them; each matcher is left as it was found.

        Args:
            vocabulary: ids outside of it are illegal, its stop ids end a path.
            num_threads: how many share the requests.
            pool: the `NativePool.handle` that has them.
        """
        library = core()
        assert library is not None, "a matcher has native calls, so there is native code"
        tree, rows = self._tree, self._rows
        num_requests, stop_ids = len(self._numbers), array("q", vocabulary.stop_ids)
        self._outcomes = np.zeros(num_requests, np.int32)
        self._refused = np.empty(num_requests, np.int64)
        self._reasons = np.empty((num_requests, REASON_SIZE), np.uint8)
        arrays = map(
            np.ascontiguousarray,
            (tree.cu_nodes, tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling),
        )
        rows.num_rows = library.specgrammar_walk(
            pool,
            num_threads,
            num_requests,
            *(part.buffer_info()[0] for part in (self._numbers, self._calls, self._matchers)),
            *map(_address, kept := list(arrays)),
            vocabulary.vocab_size,
            stop_ids.buffer_info()[0],
            len(stop_ids),
            _address(rows.bitmask),
            rows.bitmask.shape[1],
            _address(rows.owners),
            _address(rows.status),
            rows.num_rows,
            rows.dense,
            *map(_address, (self._outcomes, self._refused, self._reasons)),
        )
        del kept  # alive until here: native code was given their addresses

    def failures(self) -> Iterator[tuple[int, RequestError]]:
        """The requests whose walks failed, each with its reason. Their nodes are dead."""
        for index in np.flatnonzero(self._outcomes != _WALKED).tolist():
            yield self._numbers[index], self._error(index)

    def _error(self, index: int) -> RequestError:
        if self._outcomes[index] == _NOTHING_LEGAL:
            return nothing_legal()
        if self._outcomes[index] == _REFUSED:
            return refuses_its_own(int(self._refused[index]))
        reason = self._reasons[index].tobytes().split(b"\0", 1)[0].decode(errors="replace")
        return MatcherError(f"the grammar backend failed in native code: {reason}")


def _address(values: NDArray[Any]) -> int:
    return int(values.ctypes.data)
