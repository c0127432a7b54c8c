"""Threads that share out rows, under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "specgrammar" / "native"
COMPILER = shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_threads_that_share_out_rows_do_not_race(tmp_path: Path) -> None:
    """Nor does a call wait for threads that wake late: of those that it wants some have nothing left to do."""
    program = tmp_path / "threads"
    sources = [Path(__file__).with_name("threads.cpp"), NATIVE / "pool.cpp", NATIVE / "walk.cpp"]
    command = [str(COMPILER), "-std=c++20", "-O1", "-g", "-pthread", "-fsanitize=thread", f"-I{NATIVE}"]
    built = subprocess.run(
        [*command, *map(str, sources), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if "cannot find" in built.stderr and "tsan" in built.stderr:
        pytest.skip("the compiler comes without ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    num_came, num_wanted = map(int, done.stdout.split(" of "))
    assert num_came < num_wanted
