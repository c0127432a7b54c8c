"""The code in README and docs runs and does what the text around it says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.toy_target import ToyAdapter
from specgrammar.testing.toys import VOCABULARY
from tests.toys import backend

ROOT = Path(__file__).parents[1]


def blocks(file: str) -> list[str]:
    """The Python code blocks of a Markdown file."""
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.model
def test_the_ten_lines_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks("README.md")[0]
    assert code.count("\n") <= 14
    exec(compile(code, "README.md", "exec"), {})
    text, length = re.fullmatch(r"(.*) ([\d.]+)\n", capsys.readouterr().out).groups()  # type: ignore[union-attr]
    cities = json.loads(text)
    assert [set(city) for city in cities] == [{"name", "country"}] * 4
    assert float(length) > 1.3


def test_the_session_of_the_readme() -> None:
    code = blocks("README.md")[1].replace('"[a-z]+"', '"(ab)+c"')
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


def test_the_worker_of_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("docs/plugins.md")
    assert code.count("\n") <= 50
    module = ModuleType("my_package")
    monkeypatch.setitem(sys.modules, "my_package", module)
    exec(compile(code, "docs/plugins.md", "exec"), vars(module))
    request = Request("a", (0, 1), GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)
    outputs = []
    for algorithm in (NoSpeculation(), vars(module)["Echo"](num_draft_tokens=2)):
        (output,) = Engine(ToyAdapter(), backend("xgrammar"), algorithm, Config()).generate([request])
        outputs.append(output)
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[1].num_verify_steps < outputs[0].num_verify_steps, "an echo of ab is ab"


def test_every_folder_of_the_readmes_map_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\n(specgrammar/ .*?)```", readme, re.DOTALL)[0]
    for name in re.findall(r"^  (\w+)/", shown, re.MULTILINE):
        assert (ROOT / "specgrammar" / name).is_dir(), name
    for name in re.findall(r"^(\w+)/", shown, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
    for page in re.findall(r"docs/\w+\.md", readme):
        assert (ROOT / page).is_file(), page
