"""The C table of `SupportsNativeCalls` as Python sees it."""

from __future__ import annotations

import ctypes
from typing import Any

_POINTER, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
Move: Any = ctypes.CFUNCTYPE(_INT32, _POINTER, _POINTER, _INT32)
"""Of `accept` and `rollback`."""
Fill: Any = ctypes.CFUNCTYPE(_INT32, _POINTER, _POINTER, _POINTER)
Reason: Any = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _POINTER, _INT64)


class CallsTable(ctypes.Structure):
    """`SpecgrammarCalls` of `specgrammar/native/matcher_calls.h`, which says what its functions do."""

    _fields_ = (
        ("num_words", _INT64),
        ("accept", Move),
        ("fill", Fill),
        ("rollback", Move),
        ("reason", Reason),
    )
