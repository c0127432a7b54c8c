"""sglang as an oracle: single definitions of its source, run without importing sglang."""

from __future__ import annotations

import ast
import os
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_INSTALL = (
    "needs sglang's source: `pip download --no-deps sglang==0.5.23` and set SGLANG_WHEEL to the wheel, "
    "or `pip install --no-deps sglang==0.5.23`"
)


def load_definitions(path: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Run the named functions and classes of the file `path` below the `sglang` package.

    Args:
        path: e.g. `srt/speculative/spec_utils.py`.
        names: top-level functions and classes; the test is skipped where there is no sglang.
        namespace: what the definitions read from their module. It is not changed.
    """
    found: dict[str, ast.stmt] = {
        node.name: node
        for node in ast.parse(_read_source(path)).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    }
    assert found.keys() == names, f"sglang's {path} no longer has {names - found.keys()}"
    defined = dict(namespace)
    exec(compile(ast.Module(list(found.values()), type_ignores=[]), path, "exec"), defined)
    return {name: defined[name] for name in names}


def _read_source(path: str) -> str:
    wheel = os.environ.get("SGLANG_WHEEL")
    if wheel:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"sglang/{path}").decode()
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(_INSTALL)
    return (Path(spec.submodule_search_locations[0]) / path).read_text()
