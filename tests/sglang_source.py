"""sglang as an oracle: single definitions of its source, run without importing sglang."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import sglang_source


def load_definitions(path: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """`benchmarks.sglang_source.load_definitions`; the test is skipped where the source cannot be had."""
    try:
        return sglang_source.load_definitions(path, names, namespace)
    except RuntimeError as error:
        pytest.skip(
            f"needs sglang's source: set SGLANG_WHEEL to the wheel of {sglang_source.REQUIREMENT} ({error})"
        )
