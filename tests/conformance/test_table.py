"""The page of what the kit rejects is made from the tests, and there are enough of them."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.table import PARTS, page

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_the_tests_do() -> None:
    shown = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert shown == page(), "run: python -m tests.conformance.table > docs/conformance.md"


def test_faults_are_told_apart_and_every_part_has_some() -> None:
    for part, broken in PARTS.items():
        faults = [one.fault for one in broken]
        assert len(faults) >= 5, part
        assert len(set(faults)) == len(faults), part
