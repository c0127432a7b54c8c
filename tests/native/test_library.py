"""The compiled library: switched off, of another version, broken, or not there at all."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import tvm_ffi.libinfo

from specgrammar.errors import ConfigError
from specgrammar.native import library
from specgrammar_llguidance import calls as llguidance_calls
from specgrammar_xgrammar import calls

ROOT = Path(__file__).parents[2]

MASKS = """
import numpy as np
from specgrammar import GrammarSession
from specgrammar.grammar.dense import fill_dense
from specgrammar.native.library import why_no_core
from specgrammar.testing.toys import GRAMMARS, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.toys import matcher

tree = HostTree.from_chains([[0, 0, 1, 0, 1, 2], [0, 3, 4], [0], [0, 9, 2, 16]] * 4)
sessions = [GrammarSession(VOCABULARY, matcher("xgrammar", GRAMMARS[i % 4])) for i in range(16)]
print(why_no_core(), [session.native_calls() is not None for session in sessions][0])
bitmask = np.zeros((len(tree.draft_tokens), VOCABULARY.num_words), np.int32)
print(fill_dense(sessions, tree, bitmask).tolist())
print(bitmask.tolist())
"""


def masks(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", MASKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_switched_off_the_masks_are_the_same() -> None:
    on, off = masks(SPECGRAMMAR_NATIVE="1"), masks(SPECGRAMMAR_NATIVE="0")
    assert on[0] == " True"
    assert off[0] == "switched off by SPECGRAMMAR_NATIVE=0 False"
    assert on[1:] == off[1:]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded yet."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "core", library.core.__wrapped__)


@pytest.mark.usefixtures("fresh")
def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = library._VERSION
    monkeypatch.setattr(library, "_VERSION", found + 1)
    with pytest.raises(
        ConfigError, match=rf"of version {found}, this code needs {found + 1}; .* `make native`"
    ):
        library.core()


@pytest.mark.usefixtures("fresh")
def test_a_broken_library_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libspecgrammar.so").write_bytes(b"\x7fELF and no more")
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    with pytest.raises(ConfigError, match=r"libspecgrammar.so cannot be loaded: .*SPECGRAMMAR_NATIVE=0 to do"):
        library.core()
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.core() is None


@pytest.mark.usefixtures("fresh")
def test_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert library.why_no_core() == ""
    monkeypatch.setenv(library.SWITCH, "0")
    assert library.why_no_core() == "switched off by SPECGRAMMAR_NATIVE=0"
    monkeypatch.delenv(library.SWITCH)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    assert library.why_no_core() == "the package was built without a C++ compiler"


def test_a_library_with_another_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(llguidance_calls.MatcherState):
        _fields_: ClassVar = [("more", ctypes.c_int64)]

    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(llguidance_calls, "MatcherState", Longer)
    with pytest.raises(ConfigError, match=r"a state of 48 bytes, this code one of 56; .* `make native`"):
        llguidance_calls._library.__wrapped__()


@pytest.mark.parametrize("switched_off", [True, False])
def test_without_a_native_library_that_of_tvm_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, switched_off: bool
) -> None:
    def absent() -> str:
        raise OSError("there is no libtvm_ffi")

    monkeypatch.setattr(tvm_ffi.libinfo, "find_libtvm_ffi", absent)
    monkeypatch.setenv(library.SWITCH, "0" if switched_off else "1")
    if not switched_off:
        monkeypatch.setattr(calls, "__file__", str(tmp_path / "calls.py"))
    assert calls._library.__wrapped__() is None
