"""`specgrammar check`: a plugin's contract, clause by clause."""

from __future__ import annotations

import json

import pytest

from specgrammar.cli.main import main
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.testing import BACKEND_CHECKS, MATCHER_CHECKS
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from tests.conformance.broken.rejected import backend_of


class Forgetful(ReferenceMatcher):
    """Its stop token cannot be undone."""

    def rollback(self, num_tokens: int) -> None:
        finished = self._finished
        super().rollback(num_tokens)
        self._finished = finished


class Talkative(ReferenceBackend):
    """It prints."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        print("made a backend")
        super().__init__(vocabulary)


class Found:
    """A plugin that is found under any name."""

    def __init__(self, factory: object) -> None:
        self.factory = factory

    def load(self) -> object:
        return self.factory


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken backend `forgetful`, one that prints, the reference as `reference`."""
    made = {"forgetful": backend_of(Forgetful), "reference": ReferenceBackend, "talkative": Talkative}
    for module in ("specgrammar.cli.check", "specgrammar.registry"):
        monkeypatch.setattr(f"{module}.find", lambda _, name: Found(made[name]))


@pytest.mark.usefixtures("installed")
def test_a_broken_clause_is_shown_with_its_invariant_and_the_smallest_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "backend", "forgetful", "--only", "check_the_stop_token_is_one_step"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("BROKEN  matcher: check_the_stop_token_is_one_step (")
    assert lines[1].startswith("  invariant 1: the state after a rollback equals a fresh replay")
    assert lines[2].startswith("  contract: A stop token is legal where the grammar may end")
    assert lines[3].startswith("  found: ")
    assert "finished" in lines[3]
    assert lines[4] == "  smallest example:"
    assert lines[-1].startswith("backend forgetful breaks 1 of 1 clauses of its contract (")


@pytest.mark.usefixtures("installed")
def test_json_has_a_line_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "check_rollback_equals_replay", "--only", "check_it_says_what_it_is"]
    assert main(["check", "backend", "reference", "--output", "json", *only]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["protocol"], line["check"], line["verdict"]) for line in found] == [
        ("backend", "check_it_says_what_it_is", "kept"),
        ("matcher", "check_rollback_equals_replay", "kept"),
    ]
    assert found[1]["invariant"] == 1
    assert found[0]["contract"]


@pytest.mark.usefixtures("installed")
def test_what_a_plugin_prints_is_no_part_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "check_it_says_what_it_is"]
    assert main(["check", "backend", "talkative", "--output", "json", *only]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "kept"
    assert "made a backend" in said.err


def test_an_algorithm_is_checked_with_its_options_in_the_toy_world(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "check_a_request_may_need_no_drafts", "--only", "check_rejection_keeps_the_law"]
    assert main(["check", "algorithm", "ngram", "--option", "breadth=1", *only]) == 0
    out = capsys.readouterr().out
    assert "ok      producer: check_a_request_may_need_no_drafts" in out
    assert "skipped worker: check_rejection_keeps_the_law" in out
    assert out.splitlines()[-1].startswith("algorithm ngram keeps all 1 clauses of its contract, 1 skipped (")


@pytest.mark.model
def test_an_algorithm_that_needs_a_model_gets_one(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", "check_an_empty_batch_gives_an_empty_tree"]
    assert main(["check", "algorithm", "eagle", *only]) == 0
    said = capsys.readouterr()
    assert "not in the toy world (" in said.err
    assert "embed_tokens.weight has shape" in said.err
    assert "keeps all 1 clauses" in said.out


@pytest.mark.parametrize(
    ("kind", "name", "first"),
    [
        ("backend", "xgrammar", ["check_it_says_what_it_is", "check_what_is_declared_compiles"]),
        ("algorithm", "ngram", ["check_an_algorithm_is_a_value", "check_what_is_claimed_fits"]),
    ],
)
def test_what_is_declared_is_checked_first(
    kind: str, name: str, first: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", kind, name, "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("check_")]
    assert listed[:2] == first


def test_checks_are_listed_with_their_clauses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "backend", "xgrammar", "--list"]) == 0
    out = capsys.readouterr().out
    for check in (*MATCHER_CHECKS, *BACKEND_CHECKS):
        assert f"{check.__name__}  (invariant " in out
    assert "A stop token is legal where the grammar may end" in out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["backend", "nothing"], "no backend is called 'nothing'"),
        (["algorithm", "ngram", "--option", "depth=0"], "ngram: depth = 0"),
        (["algorithm", "ngram", "--option", "deep=1"], "has no option 'deep'"),
        (["adapter", "transformers", "--option", "a=1"], "an adapter takes --model"),
        (["adapter", "transformers", "--adapter", "transformers"], "an adapter takes --model"),
        (["backend", "xgrammar", "--option", "nonsense=1"], "has no option 'nonsense'"),
        (["backend", "xgrammar", "--model", "nowhere"], "not for backends, which need no model"),
        (["backend", "xgrammar", "--adapter", "transformers"], "not for backends, which need no model"),
        (
            ["backend", "xgrammar", "--only", "check_nothing"],
            "no check 'check_nothing' of backend, matcher, mask",
        ),
        (["backend", "xgrammar", "--only", "it_says_what_it_is"], "did you mean check_it_says_what_it_is"),
        (["worker", "ngram"], "invalid choice: 'worker'"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said
