"""examples/plugin as its author's user meets it: both wheels, installed into a clean environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from specgrammar.protocols.grammar import GrammarBackend, Vocabulary
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar_toys import ChoiceBackend, Recall

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"

MAKE_BACKEND: Callable[[Vocabulary], GrammarBackend] = ChoiceBackend
MAKE_ALGORITHM: Callable[[], SpecAlgorithm] = Recall
"""That the two are to their protocols' types is checked here, by mypy and pyright."""


@pytest.mark.parametrize(("file", "most"), [("worker.py", 40), ("backend.py", 60)])
def test_the_whole_files_are_as_short_as_promised(file: str, most: int) -> None:
    assert len((EXAMPLE / "src" / "specgrammar_toys" / file).read_text(encoding="utf-8").splitlines()) <= most


@dataclass(frozen=True)
class Environment:
    """A virtual environment with both wheels, and a copy of the example's own tests."""

    folder: Path
    tests: Path

    def run(self, *command: str, expect: int = 0) -> str:
        """What a command of the environment prints, from a folder where nothing can be imported."""
        program = self.folder / "bin" / command[0]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=self.folder,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    base = tmp_path_factory.mktemp("example")
    source = base / "plugin"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for project in (ROOT, source):
        _run(
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(base / "dist"),
            str(project),
        )
    folder = base / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    wheels = sorted(str(wheel) for wheel in (base / "dist").glob("*.whl"))
    assert len(wheels) == 2
    _run(
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        *wheels,
    )
    # Torch and the like are seen where they lie. Lines of a .pth only lengthen the path: this environment's own
    # specgrammar comes first, and the editable one is not found, whose .pth is not read there.
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Environment(folder, source / "tests")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_runs_there_are_the_wheels(environment: Environment) -> None:
    code = "import specgrammar, specgrammar_toys as toys; print(specgrammar.__file__); print(toys.__file__)"
    for file in environment.run("python", "-c", code).split():
        assert Path(file).is_relative_to(environment.folder)


def test_both_plugins_are_found(environment: Environment) -> None:
    rows = [
        json.loads(line) for line in environment.run("specgrammar", "plugins", "--output", "json").splitlines()
    ]
    found = {row["name"]: row for row in rows if row["distribution"] == "specgrammar-toys 0.1.0"}
    assert {name: (row["kind"], row["state"]) for name, row in found.items()} == {
        "choices": ("backend", "available"),
        "recall": ("algorithm", "available"),
    }
    assert "options: num_draft_tokens" in found["recall"]["abilities"]


@pytest.mark.model
def test_generate_uses_both(environment: Environment) -> None:
    prompt = "Which city is the capital of France?"
    flags = ("--backend", "choices", "--algorithm", "recall", "--output", "json", "--choice", "Paris", "London")
    output, summary = environment.run("specgrammar", "generate", *flags, "--prompt", prompt).splitlines()
    assert json.loads(output)["text"] in ("Paris", "London")
    assert json.loads(output)["finish_reason"] == "stop"
    assert "summary" in json.loads(summary)


@pytest.mark.parametrize(("kind", "name"), [("backend", "choices"), ("algorithm", "recall")])
def test_the_kit_finds_nothing(environment: Environment, kind: str, name: str) -> None:
    lines = environment.run("specgrammar", "check", kind, name, "--output", "json").splitlines()
    verdicts = {outcome["check"]: outcome["verdict"] for outcome in map(json.loads, lines)}
    assert len(verdicts) > 10
    assert set(verdicts.values()) <= {"kept", "skipped"}
    assert (
        list(verdicts.values()).count("kept") > len(verdicts) / 2
    )  # it has one kind of grammar and no abilities


def test_its_own_tests_run_there(environment: Environment) -> None:
    some = ("-k", "stop_token or is_a_value", "-p", "no:cacheprovider")  # all of them are run above
    assert "2 passed" in environment.run("python", "-m", "pytest", str(environment.tests), *some)
