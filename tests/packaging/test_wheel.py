"""The wheel: what is in it, and that importing it stays light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "specgrammar",
    "specgrammar_xgrammar",
    "specgrammar_llguidance",
    "specgrammar_transformers",
    "specgrammar_sglang",
    "specgrammar_vllm",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    sources = {"": ROOT, "backends": ROOT / "backends", "adapters": ROOT / "adapters"}
    expected = set()
    for base in sources.values():
        for package in PACKAGES:
            if (base / package).is_dir():
                files = [f for f in (base / package).rglob("*") if f.is_file() and "__pycache__" not in f.parts]
                expected |= {f.relative_to(base).as_posix() for f in files}
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == expected
    assert all(f"{package}/py.typed" in shipped for package in PACKAGES)


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
