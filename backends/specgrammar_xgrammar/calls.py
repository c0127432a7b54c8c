"""xgrammar's matchers for native code: see `calls.cpp`."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi.libinfo
import xgrammar

from specgrammar.errors import ConfigError
from specgrammar.native.library import SWITCH, load

_METHODS = ("accept_token", "fill_next_token_bitmask", "rollback")


@cache
def native_table(num_words: int) -> int | None:
    """The address of the `SpecgrammarCalls` for rows of `num_words` words; None where it was not built.

    Raises ConfigError where the installed xgrammar has not the functions that it needs.
    """
    library = _library()
    if library is None:
        return None
    table: int = library.specgrammar_xgrammar_calls(*_handles(), num_words)
    return table


@cache
def _library() -> ctypes.CDLL | None:
    ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi(), ctypes.RTLD_GLOBAL)  # it calls functions of it
    library = load(Path(__file__).with_name("libspecgrammar_xgrammar.so"))
    if library is not None:
        library.specgrammar_xgrammar_calls.restype = ctypes.c_void_p
        library.specgrammar_xgrammar_calls.argtypes = [*[ctypes.c_void_p] * len(_METHODS), ctypes.c_int64]
    return library


@cache
def _handles() -> tuple[int, ...]:
    """The functions behind xgrammar's methods, which live as long as the process."""
    handle_type: Any = xgrammar.base._core.GrammarMatcher
    functions = {method.name: method.func for method in handle_type.__tvm_ffi_type_info__.methods}
    missing = [name for name in _METHODS if name not in functions]
    if missing:
        raise ConfigError(
            f"xgrammar {xgrammar.__version__} has no {', '.join(missing)}; install the version that "
            f"specgrammar asks for, or set {SWITCH}=0"
        )
    return tuple(functions[name].__chandle__() for name in _METHODS)
