"""Requests of a batch whose grammars native code moves: the part of a native call that is about them."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import MatcherError, RequestError
from specgrammar.grammar.calls import refuses_its_own
from specgrammar.grammar.native import one_line
from specgrammar.grammar.walk import nothing_legal
from specgrammar.native.library import core
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.trees.tree import HostTree

_WALKED, _NOTHING_LEGAL, _REFUSED = 0, 1, 2
"""How a request may end; see `native/walk.h`."""
_RESULT_SIZE = 16
"""Bytes that say it: the outcome, and what there is to say about it."""
_WORD = array("Q").itemsize
_MATCHER = slice(
    _WORD * NativeCalls._fields.index("matcher"), _WORD * (NativeCalls._fields.index("matcher") + 1)
)
"""Where packed calls say whose they are."""


class _Taken(NamedTuple):
    """Which requests of a batch are taken, in a row as native code reads them; nobody writes to it."""

    asked: list[bytes | None]
    """The calls of all."""
    numbers: array[int]
    natives: array[int]
    """The calls of those that are taken."""

    @classmethod
    def of(cls, natives: list[bytes | None]) -> _Taken:
        """Take them. What was found is kept, as a batch is often that of the step before."""
        key = natives[0] if natives else None
        kept = _KEPT.get(key)
        if kept is not None and kept.asked == natives:
            return kept
        first = dict[bytes, int]()
        for number, native in enumerate(natives):
            if native:
                first.setdefault(native[_MATCHER], number)
        numbers = array("q", first.values())
        made = cls(natives, numbers, array("Q", b"".join(native for n in numbers if (native := natives[n]))))
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()  # to look for the oldest takes more than one step, and other threads keep theirs here
        _KEPT[key] = made
        return made


_KEPT: dict[bytes | None, _Taken] = {}
"""By the calls of the first request."""
_MOST_KEPT = 16
"""Batches that a process has in turns: one for each engine."""


class NativeBatch:
    """Requests, their trees and their vocabulary by address, and how they ended.

    Attributes:
        numbers: which requests of the batch, in order.
        num_nodes: of the whole batch.
        address: of all this as native code reads it (`Batch` in `native/api.cpp`), as long as this object is.
    """

    def __init__(self, tree: HostTree, vocabulary: Vocabulary, natives: list[bytes | None]) -> None:
        """Take the requests that native code can move.

        Args:
            tree: of the whole batch; valid.
            vocabulary: ids outside of it are illegal, its stop ids end a path.
            natives: for each request `packed` calls of its matcher, which stands behind its root's token; None
                where native code is not to move it. Of requests that share a matcher the first is taken, as two
                threads might move it. The list is kept, so nobody may change it.
        """
        self._taken = taken = _Taken.of(natives)
        self.numbers: array[int] = taken.numbers
        self.num_nodes: int = len(tree.draft_tokens)
        self._bs = len(tree.cu_nodes) - 1
        # What the addresses below are of, kept as long as this.
        self._stop_ids = array("q", vocabulary.stop_ids)
        self._trees = [
            np.ascontiguousarray(part)
            for part in (tree.cu_nodes, tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
        ]
        num = len(self.numbers)
        self._results = array("q", bytes(_RESULT_SIZE * num))
        self._fields = array(
            "Q",
            (
                *(num, self.numbers.buffer_info()[0], taken.natives.buffer_info()[0]),
                *map(address, self._trees),
                *(vocabulary.vocab_size, *self._stop_ids.buffer_info()),
                self._results.buffer_info()[0],
            ),
        )
        self.address: int = self._fields.buffer_info()[0]

    def others(self) -> list[int]:
        """The requests of the batch that were not taken."""
        return [] if len(self.numbers) == self._bs else sorted({*range(self._bs)}.difference(self.numbers))

    def failures(self) -> list[tuple[int, RequestError]]:
        """The requests that failed, by their places in `numbers`, each with its reason; asked again, none."""
        outcomes = self._results[::2]
        if not any(outcomes):
            return []
        failed = [index for index, outcome in enumerate(outcomes) if outcome != _WALKED]
        errors = [(index, _error(outcomes[index], self._results[2 * index + 1])) for index in failed]
        for index in failed:
            self._results[2 * index] = _WALKED  # its text is free
        return errors


def _error(outcome: int, what: int) -> RequestError:
    """What a result means (`Result` in `native/api.cpp`)."""
    if outcome == _NOTHING_LEGAL:
        return nothing_legal()
    if outcome == _REFUSED:
        return refuses_its_own(what)
    library = core()
    assert library is not None
    text = b"out of memory"
    if what:
        text = ctypes.string_at(what)
        library.specgrammar_text_free(what)
    reason = one_line(text.decode(errors="replace").strip() or "it gave no reason")
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
