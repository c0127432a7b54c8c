"""The GPU script on the CPU, with the interpreter in place of the compiler: it must not rot between GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check

SCRIPT = Path(gpu_check.__file__)


def test_every_check_agrees_with_its_reference() -> None:
    checks = gpu_check.run(torch.device("cpu"), small=True)
    assert {check.name for check in checks if not check.agrees} == set()
    assert len(checks) >= 8
    assert {check.name for check in checks} >= {"verify, greedy", "verify, sampled", "verify, rejection"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here: run the script itself")
def test_without_a_device_it_says_so_in_one_line() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")
    assert "no CUDA device" in done.stdout


def test_it_needs_no_more_than_torch_triton_and_the_backends() -> None:
    """On a machine with a device there may be nothing else, and nothing can be fetched."""
    missing = ("gguf", "jsonschema", "hypothesis", "scipy", "matplotlib", "pytest")
    code = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({missing!r}))
script = runpy.run_path({str(SCRIPT)!r})
import torch
assert script["check_generation"](torch.device("cpu"), "llguidance").agrees
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
