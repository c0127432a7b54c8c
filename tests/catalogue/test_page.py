"""The page and the tests name the same kinds, and what the page names exists."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failure-catalogue.md").read_text(encoding="utf-8")
KINDS = re.findall(r"^### (\d+)\. .+\n\n((?:.+\n)+)", PAGE, re.MULTILINE)


def functions() -> dict[str, str]:
    """The file of each test that has a number."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_failure_"):
                assert node.name not in found
                found[node.name] = str(path.relative_to(ROOT))
    return found


def test_each_kind_has_one_number_and_one_test() -> None:
    numbers = [int(number) for number, _ in KINDS]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) == PAGE.count("\n### ") >= 57
    named = re.findall(r"\*\*Test:\*\* `(\w+)`\s+in\s+`([\w/.]+)`", PAGE)
    assert len(named) == len(numbers)
    assert dict(named) == functions()
    for number, (name, _) in zip(numbers, named, strict=True):
        assert name.startswith(f"test_failure_{number:02}_"), f"kind {number} names {name}"


def test_each_kind_says_what_is_seen_why_and_what_prevents_it() -> None:
    for number, text in KINDS:
        parts = re.findall(r"^- \*\*(\w+):\*\*", text, re.MULTILINE)
        assert parts[:4] == ["Seen", "Why", "Here", "Test"], number
        assert parts[4:] in ([], ["Public"]), number
        here = re.split(r"\*\*(?:Here|Test):\*\*", text)[1]
        assert re.findall(r"`([\w/]+\.py)`", here), f"kind {number} names no file"


def test_the_files_that_are_named_exist() -> None:
    for path in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path


def test_links_are_issues_of_the_repository_that_they_name() -> None:
    links = re.findall(r"\[([\w./-]+)#(\d+)\]\((\S+)\)", PAGE)
    assert len(links) == PAGE.count("](")
    for repository, number, address in links:
        assert address == f"https://github.com/{repository}/issues/{number}"
    assert len(Counter(repository for repository, *_ in links)) > 5
