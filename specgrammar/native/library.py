"""The compiled part of the package, where there is one: see `hatch_build.py` for how it comes about."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from specgrammar.errors import ConfigError

_VERSION = 8
"""`SPECGRAMMAR_NATIVE_VERSION`: raised whenever a signature changes."""
SWITCH = "SPECGRAMMAR_NATIVE"
"""Environment variable: `0` walks grammars by Python although native libraries are there."""

_POINTER, _INT64, _INT32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_BATCH = [_POINTER, _POINTER, _INT32]  # and the threads for it
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "specgrammar_pool_new": (_POINTER, [_INT32]),
    "specgrammar_pool_num_threads": (_INT32, [_POINTER]),
    "specgrammar_pool_free": (None, [_POINTER]),
    "specgrammar_pool_wake": (None, [_POINTER, _INT32]),
    "specgrammar_pool_rouse": (None, [_POINTER, _INT32]),
    "specgrammar_text_free": (None, [_POINTER]),
    "specgrammar_walk": (
        _INT64,
        [
            *_BATCH,
            *(_POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT32),  # the rows
        ],
    ),
    "specgrammar_follow": (
        _INT64,
        [
            *_BATCH,
            *(_POINTER, _INT32, _INT64, _POINTER, _POINTER, _INT64, _INT64),  # the draws
            *(_POINTER, _INT64, _POINTER),  # rows for others
            *(_POINTER, _INT64, _POINTER),  # the paths, and statuses
        ],
    ),
    "specgrammar_draw": (
        None,
        [
            *(_INT64, _POINTER, _INT64, _POINTER),  # the rows
            *(_POINTER, _INT64, _INT64),  # the logits
            _POINTER,
        ],
    ),
}


@cache
def core() -> ctypes.CDLL | None:
    """The library of `specgrammar/native`; None where the package was built without a C++ compiler."""
    library = load(Path(__file__).with_name("libspecgrammar.so"))
    if library is None:
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def why_no_core() -> str:
    """Why there is no native code here; empty where there is. Raises ConfigError as `core` does."""
    if core() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    return "the package was built without a C++ compiler"


def is_wanted(path: Path) -> bool:
    """Whether a library was compiled with the package, and native code is not switched off."""
    return os.environ.get(SWITCH) != "0" and path.exists()


def load(path: Path) -> ctypes.CDLL | None:
    """A library that was compiled with the package; None where there is none, or where it is switched off.

    Args:
        path: `libNAME.so`, which has a function `NAME_version`.

    Raises:
        ConfigError: it is there and cannot be loaded, or it is of another version.
    """
    if not is_wanted(path):
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(
            f"the native library {path.name} cannot be loaded: {error}; install the package again, or set "
            f"{SWITCH}=0 to do without"
        ) from error
    name = f"{path.stem.removeprefix('lib')}_version"
    version: int = getattr(library, name)() if hasattr(library, name) else 0
    if version != _VERSION:
        raise ConfigError(
            f"the native library {path.name} is of version {version}, this code needs {_VERSION}; install the "
            "package again, or run `make native` in a checkout"
        )
    return library
