"""The wheel, built from the source distribution: what is in it, also without a compiler; imports stay light."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "specgrammar",
    "specgrammar_xgrammar",
    "specgrammar_llguidance",
    "specgrammar_transformers",
    "specgrammar_sglang",
    "specgrammar_vllm",
)


def built(out: Path, source: Path, *flags: str, **environment: str) -> str:
    """What the build backend says."""
    command = [sys.executable, "-m", "build", *flags, "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    built(out, ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def pure_wheel(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Built where there is no compiler; and what the build said."""
    out = tmp_path_factory.mktemp("pure")
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sources:
        sources.extractall(out, filter="data")
    said = built(out, out / path.name.removesuffix(".tar.gz"), "--wheel", CXX="/nonexistent/g++")
    (made,) = out.glob("*.whl")
    return made, said


def sources() -> set[str]:
    """The files of all packages, by their names in a wheel; without what was compiled here."""
    found = set()
    for base in (ROOT, ROOT / "backends", ROOT / "adapters"):
        for package in PACKAGES:
            files = [file for file in (base / package).rglob("*") if file.is_file()]
            found |= {f.relative_to(base).as_posix() for f in files if "__pycache__" not in f.parts}
    return {name for name in found if not name.endswith((".so", ".new"))}


def modules(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def walks_in(wheel: zipfile.ZipFile, folder: Path) -> str:
    """Why grammars are not walked by native code where the wheel is installed; a walk has its result."""
    wheel.extractall(folder)
    code = (
        "import numpy as np; from specgrammar import GrammarSession, GrammarSpec, HostTree; "
        "from specgrammar.native.library import why_no_core; import specgrammar; "
        "from specgrammar.testing.reference import ReferenceBackend; "
        "from specgrammar.testing.toys import VOCABULARY; backend = ReferenceBackend(VOCABULARY); "
        "session = GrammarSession(VOCABULARY, backend.matcher(backend.compile(GrammarSpec.regex('ab')))); "
        "status = session.fill(HostTree.from_chains([[0, 0, 1, 1]]), np.zeros((4, 1), np.int32)); "
        "assert status.tolist() == [4, 4, 4, 1], status; print(specgrammar.__file__, why_no_core(), sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    file, reason = done.stdout.splitlines()
    assert Path(file).is_relative_to(folder)
    return reason


def test_the_wheel_holds_every_module_and_the_libraries_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    libraries = {name.removeprefix("backends/") for name in hatch_build._LIBRARIES}
    assert modules(wheel) == sources() | libraries
    assert "specgrammar/native/matcher_calls.h" in modules(wheel), "other backends include it"
    assert all(f"{package}/py.typed" in modules(wheel) for package in PACKAGES)


def test_the_wheel_is_for_this_platform_and_walks_natively(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert str(wheel.filename).endswith(f"-py3-none-{platform}.whl")
    (info,) = [name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL")]
    assert b"Root-Is-Purelib: false" in wheel.read(info)
    assert walks_in(wheel, tmp_path) == ""


def test_the_source_distribution_has_what_is_compiled_and_nothing_that_was(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    compiled = [f.relative_to(ROOT).as_posix() for f in ROOT.glob("*/*/*") if f.suffix in (".cpp", ".h")]
    assert len(compiled) > 5
    assert {"hatch_build.py", "pyproject.toml", *compiled} <= names
    assert not [name for name in names if name.endswith(".so")]


def test_without_a_compiler_the_wheel_is_pure_and_works(pure_wheel: tuple[Path, str], tmp_path: Path) -> None:
    path, said = pure_wheel
    assert path.name.endswith("-py3-none-any.whl")
    assert "built without native libraries, grammars are walked by Python: " in said
    wheel = zipfile.ZipFile(path)
    assert modules(wheel) == sources()
    assert walks_in(wheel, tmp_path) == "the package was built without a C++ compiler"


def test_the_wheel_names_its_licence_extras_and_entry_points(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = wheel.read(f"{info}/METADATA").decode()
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "License-Expression: Apache-2.0" in metadata
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    for extra in project["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    for group, members in project["entry-points"].items():
        assert f"[{group}]" in entry_points
        for name, target in members.items():
            assert f"{name} = {target}" in entry_points


def test_importing_specgrammar_imports_neither_torch_nor_a_backend() -> None:
    light = (
        "import specgrammar, specgrammar.config, specgrammar.errors, specgrammar.registry, "
        "specgrammar.protocols.grammar, specgrammar.protocols.spec, specgrammar.protocols.staging, "
        "specgrammar.protocols.target, specgrammar.trees.tree, specgrammar.grammar.session, "
        "specgrammar.spec.ngram, specgrammar.spec.none, specgrammar.cli.main"
    )
    heavy = {"torch", "xgrammar", "llguidance", "transformers", "specgrammar_xgrammar", "triton"}
    code = f"import sys; {light}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
