"""Requests of a batch whose grammars native code moves: the part of a native call that is about them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
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
        numbers: which requests of the batch, in order.
        num_nodes: of the whole batch.
    """

    def __init__(self, tree: HostTree, vocabulary: Vocabulary, natives: Sequence[NativeCalls | None]) -> None:
        """Take the requests that native code can move.

        Args:
            tree: of the whole batch; valid.
            vocabulary: ids outside of it are illegal, its stop ids end a path.
            natives: for each request how native code moves its matcher, which stands behind its root's token;
                None where it is not to. Of requests that share a matcher the first is taken, as two threads
                might move it.
        """
        found = {i: native for i, native in enumerate(natives) if native is not None}
        if len({native.matcher for native in found.values()}) < len(found):
            first_with = {native.matcher: i for i, native in reversed(found.items())}
            found = {i: found[i] for i in sorted(first_with.values())}
        self.numbers: array[int] = array("q", found)
        self.num_nodes: int = len(tree.draft_tokens)
        self._tree, self._vocabulary = tree, vocabulary
        self._natives = array("Q", chain.from_iterable(found.values()))

    def others(self) -> list[int]:
        """The requests of the batch that were not taken."""
        bs = len(self._tree.cu_nodes) - 1
        return [] if len(self.numbers) == bs else sorted({*range(bs)}.difference(self.numbers))

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
            self.numbers.buffer_info()[0],
            self._natives.buffer_info()[0],
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


def check_native(native: object) -> None:
    """Raise MatcherError for what native code cannot be given: its addresses are followed as they are."""
    try:
        is_one = isinstance(native, NativeCalls) and bool(array("Q", native))
    except (TypeError, OverflowError):
        is_one = False
    if not is_one:
        raise MatcherError(f"native_calls gave {native!r}; expected NativeCalls of two addresses and a number")


def address(values: NDArray[Any]) -> int:
    """Where a C-contiguous array lies, 0 for one without elements; the caller keeps it alive."""
    if not values.size:
        return 0
    if values.flags.writeable:  # in a fourth of the time that NumPy takes to tell
        return ctypes.addressof(ctypes.c_char.from_buffer(values.data))
    return int(values.ctypes.data)
