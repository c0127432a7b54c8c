"""The code in README and docs runs and does what the text around it says; the site builds."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

from specgrammar import registry
from specgrammar.cli.main import main
from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.protocols.spec import ProducerContext
from specgrammar.registry import find
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.toy_target import ToyAdapter
from specgrammar.testing.toys import VOCABULARY
from specgrammar_toys import Recall
from specgrammar_transformers import adapter
from specgrammar_transformers.loading import load_model
from specgrammar_vllm.options import Options
from specgrammar_vllm.proposer import ChainProducer
from tests.snippets import PAGES, ROOT, Snippet, snippets
from tests.toys import backend

ALL = [snippet for page in PAGES for snippet in snippets(page)]

NOT_RUN = {
    ("README.md", "`make test` runs this test"),
    ("docs/index.md", "it would install over the package that is being tested"),
    ("docs/adapters/vllm.md", "`make test-vllm` installs and starts vLLM"),
    ("docs/adapters/sglang.md", "`make test-sglang` installs sglang"),
    ("docs/adapters/sglang.md", "a server needs a GPU"),
    ("docs/tutorials/trees.md", "it would install over the package that is being tested"),
    (
        "examples/plugin/README.md",
        "tests/packaging/test_example_plugin.py installs it, in an environment of its own",
    ),
}
"""All that nothing runs, by page and reason."""


def test_what_is_not_run_is_known() -> None:
    assert {(snippet.page, snippet.not_run) for snippet in ALL if snippet.not_run} == NOT_RUN


def test_every_block_is_of_a_language_that_is_run() -> None:
    for snippet in ALL:
        assert snippet.language in {"python", "toml", "sh", "text"}, snippet.where
        assert not snippet.tested_by or snippet.tested_by in globals(), snippet.where


@pytest.fixture(autouse=True)
def _load_each_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes longer than what most snippets do with the model."""
    monkeypatch.setattr(adapter, "load_model", load_once)


load_once = cache(load_model)


# Python: blocks of one name are one program.


def programs() -> Iterator[Any]:
    """The blocks of each program, as pytest's parameters."""
    runnable = [s for s in ALL if s.language in ("python", "text") and not (s.tested_by or s.not_run)]
    alone = itertools.count()
    by_name: dict[tuple[str, str | int], list[Snippet]] = {}
    for snippet in runnable:
        if snippet.language == "python" or "printed" in snippet.needs:
            by_name.setdefault((snippet.page, snippet.name or next(alone)), []).append(snippet)
    for blocks in by_name.values():
        needs_model = any("model" in block.needs for block in blocks)
        yield pytest.param(blocks, id=blocks[0].where, marks=[pytest.mark.model] if needs_model else [])


@pytest.mark.parametrize("blocks", list(programs()))
def test_python(
    blocks: list[Snippet], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("snippet")
    monkeypatch.setitem(sys.modules, "snippet", module)
    printed = ""
    for block in blocks:
        if block.language == "text":
            assert without_times(printed) == without_times(block.code), block.where
            continue
        code = "\n" * block.line + block.code  # so that a traceback names the line of the page
        exec(compile(code, block.page, "exec"), vars(module))
        printed += capsys.readouterr().out
    run_tests_of(module)


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d s", "0.0 s", text)


def run_tests_of(module: ModuleType) -> None:
    """What pytest would do with the module: its functions and test cases, with fewer parameters."""
    for name, member in list(vars(module).items()):
        if isinstance(member, type) and issubclass(member, unittest.TestCase):
            case: Any = member
            case.settings = settings(max_examples=5, stateful_step_count=10)  # it runs: that is enough here
            result = unittest.defaultTestLoader.loadTestsFromTestCase(case).run(unittest.TestResult())
            assert result.testsRun, name
            assert result.wasSuccessful(), result.errors + result.failures
        elif name.startswith("test_"):
            for values in parameters_of(member):
                with suppress(unittest.SkipTest):
                    member(*values)


def parameters_of(test: Callable[..., object]) -> Iterable[tuple[object, ...]]:
    """The first and the last value of each parameter: examples/plugin/tests runs them all."""
    marks = [list(mark.args[1]) for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    return itertools.product(*([values[0], values[-1]] for values in marks))


# TOML: configurations, and entry points.


@pytest.mark.parametrize("snippet", [pytest.param(s, id=s.where) for s in ALL if s.language == "toml"])
def test_toml(snippet: Snippet) -> None:
    values = tomllib.loads(snippet.code)
    if "project" not in values:
        assert Config.from_toml(snippet.code).algorithm in {
            plugin.name for plugin in registry.plugins(registry.ALGORITHMS)
        }
        return
    for group, entries in values["project"]["entry-points"].items():
        assert group in {known.name for known in registry.GROUPS}
        for name, target in entries.items():
            assert callable(EntryPoint(name, target, group).load())


# The shell: the command line, in this process.


def commands() -> Iterator[Any]:
    """Every command line of a shell block, as pytest's parameters."""
    for snippet in ALL:
        if snippet.language == "sh" and not snippet.not_run:
            for line in snippet.code.splitlines():
                needs_model = line.startswith("specgrammar generate")
                marks = [pytest.mark.model] if needs_model else []
                yield pytest.param(
                    line, "plugin" in snippet.needs, id=f"{snippet.where}: {line[:50]}", marks=marks
                )


@pytest.mark.parametrize(("line", "needs_plugin"), list(commands()))
def test_shell(
    line: str, needs_plugin: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(line)
    if needs_plugin:
        install_the_plugin(monkeypatch)
    assert program == "specgrammar", f"{line}: mark it as not run"
    if arguments[0] == "check" and "--only" not in arguments:
        arguments.append("--list")  # tests/packaging/test_example_plugin.py runs all checks
    assert main(arguments) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert out
    if arguments == ["plugins"] and needs_plugin:
        assert "recall" in out
        assert "choices" in out


def install_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the entry points of examples/plugin be found beside the installed ones."""
    project = tomllib.loads((ROOT / "examples/plugin/pyproject.toml").read_text(encoding="utf-8"))["project"]
    added = [
        EntryPoint(name, target, group)
        for group, entries in project["entry-points"].items()
        for name, target in entries.items()
    ]

    def found(*, group: str) -> EntryPoints:
        return EntryPoints([*entry_points(group=group), *(entry for entry in added if entry.group == group)])

    monkeypatch.setattr(registry, "entry_points", found)


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)(?=`|    )", (ROOT / page).read_text(encoding="utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"


# What the pages say of their code.


def the(test: str) -> str:
    (code,) = [snippet.code for snippet in ALL if snippet.tested_by == test]
    return code


@pytest.mark.model
def test_the_ten_lines_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    code = the("test_the_ten_lines_of_the_readme")
    assert code.count("\n") <= 14
    exec(compile(code, "README.md", "exec"), {})
    text, length = re.fullmatch(r"(.*) ([\d.]+)\n", capsys.readouterr().out).groups()  # type: ignore[union-attr]
    cities = json.loads(text)
    assert [set(city) for city in cities] == [{"name", "country"}] * 4
    assert float(length) > 1.3


def test_the_session_of_the_readme() -> None:
    code = the("test_the_session_of_the_readme").replace('"[a-z]+"', '"(ab)+c"')
    names: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "backend": backend("xgrammar"),
        "root": 5,
        "drafts": [0, 1, 12],
        "accepted": [0, 1],
    }
    exec(compile(code, "README.md", "exec"), names)
    assert names["num_legal"] == 2
    assert names["status"].tolist() == [NodeStatus.LIVE] * 3 + [NodeStatus.REJECTED]
    assert names["bitmask"][3].tolist() == [-1]
    assert names["session"].output == [0, 1]
    assert names["session"].finish is None


def test_the_engines_of_the_vllm_page() -> None:
    made: list[dict[str, Any]] = []

    def make(*_: object, **given: Any) -> None:
        made.append(given)

    for snippet in ALL:
        if snippet.tested_by == "test_the_engines_of_the_vllm_page":
            exec(compile(snippet.code, snippet.where, "exec"), {"LLM": make})
    assert len(made) == 3
    for given in made:
        options = Options.of(given["additional_config"])
        find(registry.BACKENDS, options.backend).load()
        module, name = given["scheduler_cls"].rsplit(".", 1)
        assert f"class {name}(" in (ROOT / f"adapters/{module}/scheduler.py").read_text(encoding="utf-8")
        if "speculative_config" in given:
            num_tokens = given["speculative_config"]["num_speculative_tokens"]
            ChainProducer(options, ProducerContext(VOCABULARY, 4, InlineDevice()), num_tokens, 1024)
            assert not given["async_scheduling"]


def test_the_worker_of_the_docs_saves_steps() -> None:
    request = Request("a", (0, 1), GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)
    outputs = []
    for algorithm in (NoSpeculation(), Recall(num_draft_tokens=2)):
        (output,) = Engine(ToyAdapter(), backend("xgrammar"), algorithm, Config()).generate([request])
        outputs.append(output)
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[1].num_verify_steps < outputs[0].num_verify_steps, "ab comes again"


def test_every_path_that_is_named_exists() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for path in re.findall(
            r"`((?:specgrammar|examples|docs|tests|backends|adapters|benchmarks)/[\w/.]*)`", text
        ):
            assert (ROOT / path).exists() or (ROOT / page).parent.joinpath(path).exists(), f"{page}: {path}"


def test_every_folder_of_the_readmes_map_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```text\n(specgrammar/ .*?)```", readme, re.DOTALL)[0]
    for name in re.findall(r"^  (\w+)/", shown, re.MULTILINE):
        assert (ROOT / "specgrammar" / name).is_dir(), name
    for name in re.findall(r"^(\w+)/", shown, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
    for page in re.findall(r"docs/[\w/]+\.md", readme):
        assert (ROOT / page).is_file(), page


# The site.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # --quiet would hide warnings, and --strict would not see them
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_every_protocol(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / path / "index.html").is_file() or (site / f"{path}.html").is_file(), path
    shown = "".join(page.read_text(encoding="utf-8") for page in site.glob("contracts/*/index.html"))
    for module in (ROOT / "specgrammar" / "protocols").glob("[a-z]*.py"):
        loaded = import_module(f"specgrammar.protocols.{module.stem}")
        for name, member in vars(loaded).items():
            if isinstance(member, type) and member.__module__ == loaded.__name__ and not name.startswith("_"):
                assert f'id="{member.__module__}.{name}"' in shown, f"{name} is on no page"


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"> ]+)", text
        )
        assert not fetched, f"{page}: {fetched}"
