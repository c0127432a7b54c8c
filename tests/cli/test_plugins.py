"""`specgrammar plugins`: each row says what it is, what checks it, what it can do; none stops the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specgrammar.cli import plugins as command
from specgrammar.cli.main import main
from specgrammar.errors import ConfigError
from specgrammar.registry import ALGORITHMS, BACKENDS, Group
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.testing.reference import ReferenceBackend


class Choices(ReferenceBackend):
    facts = replace(ReferenceBackend.facts, kinds=frozenset({"regex", "choice"}), grammar_syntaxes=frozenset())


class NeedsAnOption(NgramAlgorithm):
    """It does not say what holds without the option."""

    def __init__(self, corpus: str) -> None:
        super().__init__()
        self.corpus = corpus


class Installed:
    """A plugin that is loaded already."""

    distribution, target = "mine 1.0", "mine:Thing"

    def __init__(self, group: Group, name: str, factory: object) -> None:
        self.group, self.name, self.factory = group, name, factory

    def load(self) -> object:
        return self.factory


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["plugins", "--output", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_row_says_its_kind_and_what_checks_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(row["kind"], row["name"]): row["check"] for row in rows(capsys)}
    assert found["backend", "xgrammar"] == "specgrammar check backend xgrammar"
    assert found["algorithm", "forced"] == "specgrammar check algorithm forced"
    assert found["adapter", "transformers"] == "specgrammar check adapter transformers"
    assert main(["plugins"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("kind ")
    for checked_by in found.values():
        assert f" {checked_by} " in table


def test_a_row_says_which_kinds_compile_and_one_that_fails_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        BACKENDS.name: [Installed(BACKENDS, "choices", Choices), Installed(BACKENDS, "ours", ReferenceBackend)],
        ALGORITHMS.name: [Installed(ALGORITHMS, "needs", NeedsAnOption)],
    }
    monkeypatch.setattr(command, "plugins", lambda group: made.get(group.name, []))
    choices, ours, needs, _ = rows(capsys)
    assert "kinds: choice, regex; thread-safe" in choices["abilities"]
    assert "kinds: all; grammars: ebnf" in ours["abilities"]
    assert needs["state"].startswith("not without options: TypeError: ")


def test_the_last_row_says_whether_grammars_are_walked_natively(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> str:
        raise ConfigError("the native library is of version 7")

    row = rows(capsys)[-1]
    assert (row["kind"], row["name"], row["state"]) == ("native code", "walks", "available")
    for why, state in (
        (lambda: "switched off by SPECGRAMMAR_NATIVE=0", "unavailable: switched off by SPECGRAMMAR_NATIVE=0"),
        (fails, "unavailable: the native library is of version 7"),
    ):
        monkeypatch.setattr(command, "why_no_core", why)
        row = rows(capsys)[-1]
        assert (row["name"], row["state"], row["abilities"]) == ("walks", state, "")
