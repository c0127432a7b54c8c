"""Requests of a batch whose grammars native code moves: the part of a native call that is about them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
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

_MATCHER, _NUM_FIELDS = NativeCalls._fields.index("matcher"), len(NativeCalls._fields)
_WALKED, _NOTHING_LEGAL, _REFUSED = 0, 1, 2
"""How a request may end; see `native/walk.h`."""


class NativeBatch:
    """Requests, their trees and their vocabulary by address, and how they ended.

    Attributes:
        numbers: which requests of the batch, in order.
        num_nodes: of the whole batch.
    """

    def __init__(self, tree: HostTree, vocabulary: Vocabulary, natives: Sequence[bytes | None]) -> None:
        """Take the requests that native code can move.

        Args:
            tree: of the whole batch; valid.
            vocabulary: ids outside of it are illegal, its stop ids end a path.
            natives: for each request `packed` calls of its matcher, which stands behind its root's token; None
                where native code is not to move it. Of requests that share a matcher the first is taken, as two
                threads might move it.
        """
        numbers: Sequence[int] = range(len(natives))
        if None in natives:
            numbers = [number for number, native in enumerate(natives) if native]
        taken = b"".join(filter(None, natives))
        matchers = memoryview(taken).cast("Q")[_MATCHER::_NUM_FIELDS].tolist()
        if len(set(matchers)) < len(matchers):
            kept = sorted({matcher: index for index, matcher in reversed([*enumerate(matchers)])}.values())
            numbers = [numbers[index] for index in kept]
            taken = b"".join(filter(None, (natives[number] for number in numbers)))
        self.numbers: array[int] = array("q", numbers)
        self.num_nodes: int = len(tree.draft_tokens)
        self._tree, self._vocabulary = tree, vocabulary
        self._natives = array("Q", taken)

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
        """The requests that failed, by their places in `numbers`, each with its reason."""
        if any(self._outcomes):
            for index, outcome in enumerate(self._outcomes):
                if outcome != _WALKED:
                    yield index, self._error(index)

    def _error(self, index: int) -> RequestError:
        if self._outcomes[index] == _NOTHING_LEGAL:
            return nothing_legal()
        if self._outcomes[index] == _REFUSED:
            return refuses_its_own(self._refused[index])
        text = self._reasons[index * REASON_SIZE : (index + 1) * REASON_SIZE].tobytes()
        reason = text.split(b"\0", 1)[0].decode(errors="replace")
        reason = one_line(reason.strip() or "it gave no reason")
        return MatcherError(f"the grammar backend failed in native code: {reason}")


def packed(native: NativeCalls) -> bytes:
    """What a matcher gave as native code takes it; in a step a batch's tuples and ints cost twice as much.

    Raises MatcherError for what cannot be given to native code, which follows addresses as they are.
    """
    try:
        if isinstance(native, NativeCalls):
            return array("Q", native).tobytes()
    except (TypeError, OverflowError):
        pass
    raise MatcherError(f"native_calls gave {native!r}; expected NativeCalls of two addresses and a number")


def address(values: NDArray[Any]) -> int:
    """Where a C-contiguous array lies, 0 for one without elements; the caller keeps it alive."""
    if not values.size:
        return 0
    if values.flags.writeable:  # in a fourth of the time that NumPy takes to tell
        return ctypes.addressof(ctypes.c_char.from_buffer(values.data))
    return int(values.ctypes.data)
