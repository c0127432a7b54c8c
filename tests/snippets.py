"""The code blocks of the documentation, as their pages mark them.

A block runs by itself unless a comment on the line above its fence says more, in words with commas between:

    <!-- snippet: NAME -->               goes on where the page's last block of that name ended
    <!-- snippet: NAME, printed -->      is what the blocks of that name print
    <!-- snippet: model -->              needs the real model
    <!-- snippet: plugin -->             needs examples/plugin to be installed
    <!-- snippet: tested by test_x -->   a test of its own runs it
    <!-- snippet: not run: REASON -->    nothing runs it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")]
)
_INCLUDE = re.compile(r'--8<-- "(.+)"')
_MARK = re.compile(r"<!-- snippet: (.+) -->")
_NEEDS = ("model", "plugin", "printed")


@dataclass(frozen=True)
class Snippet:
    """A code block.

    Attributes:
        page: where it is, from the repository's root.
        line: the line of its fence.
        language: what the fence says; empty for what is not code.
        code: its text, with the files that it includes.
        name: what it shares with the page's other blocks of the name; empty where it stands alone.
        needs: of `model`, `plugin`, `printed`.
        tested_by: the test that runs it, if that is not the general one.
        not_run: why nothing runs it; empty where something does.
    """

    page: str
    line: int
    language: str
    code: str
    name: str = ""
    needs: frozenset[str] = frozenset()
    tested_by: str = ""
    not_run: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: str) -> list[Snippet]:
    """All code blocks of a page, in order."""
    found: list[Snippet] = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    begin = None
    for i, line in enumerate(lines):
        if begin is None and line.startswith("```"):
            begin = i
        elif begin is not None and line == "```":
            code = "\n".join(map(_included, lines[begin + 1 : i])) + "\n"
            mark = _MARK.fullmatch(lines[begin - 1]) if begin else None
            found.append(
                _marked(page, begin + 1, lines[begin].removeprefix("```"), code, mark[1] if mark else "")
            )
            begin = None
        else:
            assert not line.lstrip().startswith("```"), f"{page}:{i + 1}: fences begin their line"
    assert begin is None, f"{page}: a code block has no end"
    num_marks = sum(bool(_MARK.fullmatch(line)) for line in lines)
    num_marked = sum(bool(s.name or s.needs or s.tested_by or s.not_run) for s in found)
    assert num_marks == num_marked, f"{page}: a mark stands above no code block"
    return found


def _included(line: str) -> str:
    include = _INCLUDE.fullmatch(line)
    return (ROOT / include[1]).read_text(encoding="utf-8").rstrip("\n") if include else line


def _marked(page: str, line: int, language: str, code: str, mark: str) -> Snippet:
    if mark.startswith("not run: "):
        return Snippet(page, line, language, code, not_run=mark.removeprefix("not run: "))
    if mark.startswith("tested by "):
        return Snippet(page, line, language, code, tested_by=mark.removeprefix("tested by "))
    words = mark.split(", ") if mark else []
    names = [word for word in words if word not in _NEEDS]
    assert len(names) <= 1, f"{page}:{line}: a snippet has one name, not {names}"
    return Snippet(page, line, language, code, "".join(names), frozenset(words) & frozenset(_NEEDS))
