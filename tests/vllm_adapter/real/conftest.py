"""Engines in vLLM's own environment, started once each; `make test-vllm` says where that is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON_VARIABLE = "SPECGRAMMAR_VLLM_PYTHON"
Run = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without an environment there is nothing to run in."""
    if os.environ.get(PYTHON_VARIABLE):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs vLLM in an environment of its own: make test-vllm"))


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """Run a program of this folder in vLLM's environment; its output, or its errors as this test's failure."""
    python = Path(os.environ[PYTHON_VARIABLE])
    variables = {
        **os.environ,
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "2",
        **environment,
    }
    result = subprocess.run(
        [str(python), str(Path(__file__).with_name(program)), *arguments],
        capture_output=True,
        text=True,
        env=variables,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs an engine for a job (see `child.py`); the same job is run once."""
    folder = tmp_path_factory.mktemp("vllm")

    @cache
    def run_once(text: str, multiprocessing: str) -> dict[str, Any]:
        job, result = folder / "job.json", folder / "result.json"
        job.write_text(text, encoding="utf-8")
        run_python("child.py", str(job), str(result), VLLM_ENABLE_V1_MULTIPROCESSING=multiprocessing)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found

    def run_job(*, multiprocessing: bool = False, **job: Any) -> dict[str, Any]:
        return run_once(json.dumps(job), str(int(multiprocessing)))

    return run_job
