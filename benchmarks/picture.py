"""matplotlib where it is installed; nothing but pictures needs it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def load_pyplot() -> Any:
    """`matplotlib.pyplot` without a screen; None, with a line that says so, where there is none."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        print("no picture: it needs matplotlib (`pip install matplotlib`)", file=sys.stderr)
        return None
