"""The pieces of sglang that the tests compare with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import sglang_pieces


def load() -> SimpleNamespace:
    """`benchmarks.sglang_pieces.load`; the test is skipped where the source cannot be had."""
    try:
        return sglang_pieces.load()
    except RuntimeError as error:
        pytest.skip(f"needs sglang's source: set SGLANG_WHEEL to its wheel ({error})")
