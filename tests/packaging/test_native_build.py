"""When the native libraries are compiled again, and what remains of those that cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[2]
STAMP = ".venv/bin/.native"
SOURCES = ("hatch_build.py", "specgrammar/native/a.h", "specgrammar/native/b.cpp", "backends/one/c.cpp")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One with empty sources, all of them older than what was compiled."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in (*SOURCES, STAMP):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (2_000_000, 2_000_000 if name == STAMP else 1_000_000))
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=checkout, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("changed", SOURCES)
def test_a_source_that_changed_is_compiled_again(checkout: Path, changed: str) -> None:
    assert make(checkout, "--question", STAMP).returncode == 0
    (checkout / changed).touch()
    assert make(checkout, "--question", STAMP).returncode == 1


def test_setup_goes_on_where_nothing_can_be_compiled_and_tries_again(checkout: Path) -> None:
    (checkout / SOURCES[1]).touch()
    for _ in range(2):
        done = make(checkout, STAMP)
        assert done.returncode == 0
        assert "without new native libraries" in done.stdout


def test_a_library_stays_whole_where_its_sources_do_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, source = "lib/libone.so", tmp_path / "lib" / "one.cpp"
    monkeypatch.setattr(hatch_build, "_LIBRARIES", {library: "lib/*.cpp"})
    source.parent.mkdir()
    source.write_text('extern "C" int one() { return 1; }\n')
    assert hatch_build.build(tmp_path) == [library]
    before = (tmp_path / library).read_bytes()
    source.write_text("int one( {\n")
    with pytest.raises(subprocess.CalledProcessError):
        hatch_build.build(tmp_path)
    assert (tmp_path / library).read_bytes() == before
    assert sorted(path.name for path in source.parent.iterdir()) == ["libone.so", "one.cpp"]
    monkeypatch.setenv("CXX", "/nonexistent/g++ -O1")
    with pytest.raises(FileNotFoundError, match="/nonexistent"):
        hatch_build.build(tmp_path)
