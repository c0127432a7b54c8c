"""xgrammar's matchers for native code: see `calls.cpp`."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tvm_ffi.libinfo

from specgrammar.errors import ConfigError
from specgrammar.native.library import SWITCH, is_wanted, load

_METHODS = ("accept_token", "fill_next_token_bitmask", "rollback")


class NativeTable:
    """The `SpecgrammarCalls` of one vocabulary.

    Attributes:
        address: of the table, valid as long as this object; None where the library for it was not built.
    """

    def __init__(self, legal: bytes, num_words: int) -> None:
        """Make a table.

        Args:
            legal: per token id, 1 for text.
            num_words: int32 words of a row.

        Raises:
            ConfigError: the installed xgrammar has not the functions that it needs.
        """
        library = _library()
        self.address: int | None = None
        self._legal = legal  # the table reads it
        if library is not None:
            self.address = library.specgrammar_xgrammar_calls(*_methods(), legal, len(legal), num_words)
            freed = weakref.finalize(self, library.specgrammar_xgrammar_free, self.address)
            freed.atexit = False  # daemon threads may be inside then


@cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).with_name("libspecgrammar_xgrammar.so")
    if is_wanted(path):  # it calls functions of this one
        ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi(), ctypes.RTLD_GLOBAL)
    library = load(path)
    if library is not None:
        library.specgrammar_xgrammar_calls.restype = ctypes.c_void_p
        library.specgrammar_xgrammar_calls.argtypes = [
            *[ctypes.c_void_p] * len(_METHODS),
            *(ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
        ]
        library.specgrammar_xgrammar_free.argtypes = [ctypes.c_void_p]
    return library


@cache
def _methods() -> tuple[int, ...]:
    """The functions behind xgrammar's methods, which live as long as the process."""
    base: Any = import_module("xgrammar.base")
    handle_type: Any = base._core.GrammarMatcher
    functions = {method.name: method.func for method in handle_type.__tvm_ffi_type_info__.methods}
    missing = [name for name in _METHODS if name not in functions]
    if missing:
        raise ConfigError(
            f"xgrammar {version('xgrammar')} has no {', '.join(missing)}; install the version that "
            f"specgrammar asks for, or set {SWITCH}=0"
        )
    return tuple(functions[name].__chandle__() for name in _METHODS)
