"""sglang's own code, run without installing it: single definitions out of its source files."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

from benchmarks.fetch import read_package_file, read_wheel_file

REQUIREMENT = "sglang==0.5.23"


def load_definitions(path: str, names: set[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Run the named functions and classes of the file `path` below the `sglang` package.

    Args:
        path: e.g. `srt/speculative/spec_utils.py`.
        names: top-level functions and classes.
        namespace: what the definitions read from their module. It is not changed.

    Raises:
        RuntimeError: sglang is neither installed nor in the wheel that `SGLANG_WHEEL` names, and could not be
            fetched.
    """
    wheel = os.environ.get("SGLANG_WHEEL")
    member = f"sglang/{path}"
    source = read_wheel_file(Path(wheel), member) if wheel else read_package_file(REQUIREMENT, member)
    found: dict[str, ast.stmt] = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    }
    assert found.keys() == names, f"sglang's {path} no longer has {names - found.keys()}"
    defined = dict(namespace)
    exec(compile(ast.Module(list(found.values()), type_ignores=[]), path, "exec"), defined)
    return {name: defined[name] for name in names}
