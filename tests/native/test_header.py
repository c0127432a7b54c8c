"""The header that backends include: C and C++, and laid out as Python reads it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from specgrammar.testing.checks.calls_table import CallsTable

FOLDER = Path(__file__).parents[2] / "specgrammar" / "native"
PROGRAM = """
#include "matcher_calls.h"
#include <stddef.h>
#include <stdio.h>

int main(void) {
  printf("%zu", sizeof(SpecgrammarCalls));
#define FIELD(name) printf(" %zu", offsetof(SpecgrammarCalls, name))
  FIELD(num_words);
  FIELD(accept);
  FIELD(fill);
  FIELD(rollback);
  FIELD(reason);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_table_is_laid_out_as_python_reads_it(tmp_path: Path, language: str) -> None:
    program = tmp_path / "program"
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{FOLDER}", "-x", language, "-", "-o", str(program)]
    subprocess.run(["g++", *flags], input=PROGRAM, text=True, check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    fields = [getattr(CallsTable, field[0]).offset for field in CallsTable._fields_]
    assert [int(number) for number in printed.split()] == [ctypes.sizeof(CallsTable), *fields]
