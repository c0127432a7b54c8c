"""What was compiled, by key, bounded in entries and in bytes: the entry that was not used for longest goes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from specgrammar.errors import GrammarCompileError
from specgrammar.protocols.abilities import KnowsItsSize
from specgrammar.protocols.grammar import CompiledGrammar, GrammarSpec

Outcome: TypeAlias = CompiledGrammar | GrammarCompileError
"""A compiled grammar, or why there is none."""

_UNKNOWN_BYTES = 16 << 10
_BYTES_PER_CHARACTER = 128
"""What an entry counts where the grammar does not tell its size: what llguidance's took when the memory of a
process was measured over 200 schemas (17 KB each) and over enumerations of 2,000 strings (130 a character)."""


class CompileKey(NamedTuple):
    """All that what is compiled depends on, but for versions: a cache ends with its process.

    Attributes:
        vocabulary: `Vocabulary.fingerprint`, which covers stop and special ids.
        backend: its class, by module and name.
        options: what the backend was made with.
        spec: the grammar.
    """

    vocabulary: str
    backend: str
    options: str
    spec: GrammarSpec


class CompileCache:
    """Outcomes by key. Thread-safe: services of several engines may share one.

    Attributes:
        num_bytes: what the entries count together.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """Make an empty cache.

        Args:
            max_entries: most entries.
            max_bytes: most bytes; what is larger alone is not kept.
        """
        self.num_bytes: int = 0
        self._lock = threading.Lock()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CompileKey, tuple[Outcome, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CompileKey) -> Outcome | None:
        """The outcome of a key, which is now the latest used; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: CompileKey, outcome: Outcome) -> None:
        """Keep an outcome, and drop the ones that were not used for longest until all fits."""
        size = _size(key, outcome)
        with self._lock:
            self._drop(key)
            if size > self._max_bytes:
                return
            self._entries[key] = (outcome, size)
            self.num_bytes += size
            while len(self._entries) > self._max_entries or self.num_bytes > self._max_bytes:
                self._drop(next(iter(self._entries)))

    def after_fork(self) -> None:
        """In a forked process: a thread that did not come along may have held the lock."""
        self._lock = threading.Lock()

    def _drop(self, key: CompileKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]


def _size(key: CompileKey, outcome: Outcome) -> int:
    """Bytes of an entry: the grammar's own count, or the estimate; its source stays in memory in any case."""
    source = len(key.spec.source)
    if isinstance(outcome, KnowsItsSize):
        return outcome.num_bytes + source
    return (
        _UNKNOWN_BYTES
        + (0 if isinstance(outcome, GrammarCompileError) else _BYTES_PER_CHARACTER * source)
        + source
    )
