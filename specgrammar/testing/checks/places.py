"""Where in a plugin something was raised, or hangs: where its author has to look."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_NOT_PLUGINS = sys.stdlib_module_names | {"specgrammar", "hypothesis", "numpy", "torch"}

Frames = Iterable[tuple[FrameType, int]]
"""Frames with the line where each is, the outermost first."""


def raised_at(error: BaseException) -> str:
    """The place where an error was raised, as `place_of` tells it."""
    return place_of(traceback.walk_tb(error.__traceback__))


def place_of(frames: Frames) -> str:
    """`FILE:LINE, in FUNCTION` of the innermost frame of the plugin's own package; empty without any frame.

    The plugin's package is the first that is called of those that may be one: neither ours nor hypothesis', the
    standard library's, NumPy's or torch's. Where there is none it is the innermost frame of all.
    """
    known = [*frames]
    packages = [_package(frame) for frame, _ in known]
    plugin = next((package for package in packages if package not in _NOT_PLUGINS), None)
    own = [frame for frame, package in zip(known, packages, strict=True) if plugin in (None, package)]
    if not own:
        return ""
    frame, line = own[-1]
    code = frame.f_code
    return f"{_short(code.co_filename)}:{line}, in {code.co_qualname}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _short(filename: str) -> str:
    """Relative to where the user is, if it lies below."""
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else filename
