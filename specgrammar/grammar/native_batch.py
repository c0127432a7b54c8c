"""Requests of a batch whose grammars native code moves: the part of a native call that is about them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import MatcherError, RequestError
from specgrammar.grammar.calls import refuses_its_own
from specgrammar.grammar.native import one_line
from specgrammar.grammar.walk import nothing_legal
from specgrammar.native.library import REASON_SIZE
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.trees.tree import HostTree

_WALKED, _NOTHING_LEGAL, _REFUSED = 0, 1, 2
"""How a request may end; see `native/walk.h`."""


class NativeBatch:
    """Requests, their trees and their vocabulary by address, and how they ended.

    Attributes:
        numbers: which requests of the batch.
        num_nodes: of the whole batch.
    """

    def __init__(self, tree: HostTree, vocabulary: Vocabulary) -> None:
        """No request yet.

        Args:
            tree: of the whole batch; valid.
            vocabulary: ids outside of it are illegal, its stop ids end a path.
        """
        self.numbers: array[int] = array("q")
        self.num_nodes: int = len(tree.draft_tokens)
        self._tree, self._vocabulary = tree, vocabulary
        self._calls, self._matchers = array("Q"), array("Q")
        self._seen = set[int]()

    def add(self, number: int, native: NativeCalls) -> bool:
        """Take a request of the batch, whose matcher stands behind its root's token.

        Returns:
            Whether it was taken. A matcher that is in the batch already is not, as two threads might move it.
        """
        if native.matcher in self._seen:
            return False
        self._seen.add(native.matcher)
        self.numbers.append(number)
        self._calls.append(native.calls)
        self._matchers.append(native.matcher)
        return True

    def inputs(self, num_threads: int, pool: int | None) -> list[int | None]:
        """The arguments that every call begins with; they hold as long as this object.

        Args:
            num_threads: how many share the requests.
            pool: the `NativePool.handle` that has them.
        """
        tree, vocabulary = self._tree, self._vocabulary
        num_requests = len(self.numbers)
        self._outcomes = array("i", bytes(4 * num_requests))
        self._refused = array("q", bytes(8 * num_requests))
        self._reasons = np.empty(num_requests * REASON_SIZE, np.uint8)
        self._stop_ids = array("q", vocabulary.stop_ids)
        self._trees = [
            np.ascontiguousarray(part)
            for part in (tree.cu_nodes, tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
        ]
        return [
            num_requests,
            *(part.buffer_info()[0] for part in (self.numbers, self._calls, self._matchers)),
            *map(address, self._trees),
            vocabulary.vocab_size,
            *self._stop_ids.buffer_info(),
            pool,
            num_threads,
        ]

    def results(self) -> list[int]:
        """The arguments that every call ends with: how each request ended."""
        return [self._outcomes.buffer_info()[0], self._refused.buffer_info()[0], address(self._reasons)]

    def failures(self) -> Iterator[tuple[int, RequestError]]:
        """The requests that failed, each with its reason."""
        if any(self._outcomes):
            for index, outcome in enumerate(self._outcomes):
                if outcome != _WALKED:
                    yield self.numbers[index], self._error(index)

    def _error(self, index: int) -> RequestError:
        if self._outcomes[index] == _NOTHING_LEGAL:
            return nothing_legal()
        if self._outcomes[index] == _REFUSED:
            return refuses_its_own(self._refused[index])
        text = self._reasons[index * REASON_SIZE : (index + 1) * REASON_SIZE].tobytes()
        reason = text.split(b"\0", 1)[0].decode(errors="replace")
        reason = one_line(reason.strip() or "it gave no reason")
        return MatcherError(f"the grammar backend failed in native code: {reason}")


def address(values: NDArray[Any]) -> int:
    """Where a C-contiguous array lies, 0 for one without elements; the caller keeps it alive."""
    if not values.size:
        return 0
    if values.flags.writeable:  # in a fourth of the time that NumPy takes to tell
        return ctypes.addressof(ctypes.c_char.from_buffer(values.data))
    return int(values.ctypes.data)
