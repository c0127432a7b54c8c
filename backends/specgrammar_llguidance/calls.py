"""llguidance's matchers for native code: see `calls.cpp`."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import ClassVar

from llguidance import LLMatcher

from specgrammar.errors import ConfigError
from specgrammar.native.library import load


class NativeTable:
    """The `SpecgrammarCalls` of one vocabulary.

    Attributes:
        address: of the table, valid as long as this object; None where the library for it was not built.
    """

    def __init__(self, vocab_size: int, num_words: int) -> None:
        """Make a table.

        Args:
            vocab_size: ids from here on are refused.
            num_words: int32 words of a row.
        """
        library = _library()
        self.address: int | None = None
        if library is not None:
            self.address = library.specgrammar_llguidance_calls(vocab_size, num_words)
            freed = weakref.finalize(self, library.specgrammar_llguidance_free, self.address)
            freed.atexit = False  # daemon threads may be inside then


class MatcherState(ctypes.Structure):
    """What changes while a matcher moves, where native code finds it too: `State` in `calls.cpp`.

    Attributes:
        matcher: the address of the `LLGuidanceMatcher`.
        native: the library's matcher.
        tokens: what was accepted.
        unread_row: the address of a row that nobody reads.
        mask_depth: text tokens at the place whose mask the library's matcher remembers.
        by_copies: fills are made by copies of the library's matcher.
    """

    native: LLMatcher
    tokens: list[int]
    unread_row: int
    mask_depth: int
    by_copies: bool
    _fields_: ClassVar = [
        ("matcher", ctypes.c_void_p),
        ("native", ctypes.py_object),
        ("tokens", ctypes.py_object),
        ("unread_row", ctypes.c_void_p),
        ("mask_depth", ctypes.c_int64),
        ("by_copies", ctypes.c_bool),
    ]


@cache
def _library() -> ctypes.CDLL | None:
    library = load(Path(__file__).with_name("libspecgrammar_llguidance.so"))
    if library is not None:
        library.specgrammar_llguidance_calls.restype = ctypes.c_void_p
        library.specgrammar_llguidance_calls.argtypes = [ctypes.c_int64, ctypes.c_int64]
        library.specgrammar_llguidance_free.argtypes = [ctypes.c_void_p]
        library.specgrammar_llguidance_state_size.restype = ctypes.c_int64
        atexit.register(library.specgrammar_llguidance_end)  # daemon threads may go on
        size: int = library.specgrammar_llguidance_state_size()
        if size != ctypes.sizeof(MatcherState):
            raise ConfigError(
                f"the native library of llguidance keeps a state of {size} bytes, this code one of "
                f"{ctypes.sizeof(MatcherState)}; install the package again, or run `make native` in a checkout"
            )
    return library
