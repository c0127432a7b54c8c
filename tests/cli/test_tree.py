"""`specgrammar tree`, the statistics by source and `--budget`, on a tiny local model."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from specgrammar.cli.main import main
from specgrammar.cli.tree_model import ShownTree, State, shown_tree, text_of
from specgrammar.cli.tree_svg import draw_tree
from specgrammar.cli.tree_text import tree_lines, wants_colour
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.draft_record import RecordedStep
from specgrammar.runtime.sources import NodeCosts, SourceCounts, SourceTable
from specgrammar.testing.toys import TEXTS, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree, PrunedDraft
from tests.cli.tiny_model import write_tiny_model

A, B, C, AB = (TEXTS.index(text) for text in (b"a", b"b", b"c", b"ab"))
SCHEMA = '{"type": "object", "properties": {"name": {"enum": ["<a&b>", "c"]}}, "required": ["name"]}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def recorded() -> RecordedStep:
    """a (taken) with b and c below it, b dead and ab beside it, padding, and two cut drafts."""
    host = HostTree.from_parents(
        np.array([0, 7]), np.array([C, A, B, AB, B, C, -1]), np.array([-1, 0, 0, 0, 1, 2, -1])
    )
    live, dead, padding = int(NodeStatus.LIVE), int(NodeStatus.REJECTED), int(NodeStatus.PADDING)
    drafted = DraftTree(
        4,
        host.cu_nodes,
        host,
        source=np.array([0, 0, 1, 1, 0, 1, 0], np.int16),
        sources=("forced", "ngram"),
        pruned=(PrunedDraft(0, (A, C), 1, "budget"), PrunedDraft(0, (A, C, C), 1, "illegal")),
    )
    status = np.array([live, live, live, dead, live, live, padding], np.int8)
    paths = AcceptedPaths(np.array([[0, 1]]), np.array([1]), np.array([C]))
    return RecordedStep(4, ("a",), drafted, host, status, paths)


def shown() -> ShownTree:
    return shown_tree(recorded(), 0, VOCABULARY)


def test_every_node_has_its_source_and_its_state() -> None:
    nodes = [(node.text, node.source, node.state) for node in shown().root.walk()]
    assert nodes == [
        ("c", "", State.ACCEPTED),
        ("a", "forced", State.ACCEPTED),
        ("b", "forced", State.REFUSED),
        ("c", "ngram", State.PRUNED_BUDGET),
        ("c", "ngram", State.PRUNED_ILLEGAL),
        ("b", "ngram", State.REFUSED),
        ("c", "ngram", State.LIVE),
        ("ab", "ngram", State.ILLEGAL),
        ("<-1>", "forced", State.PADDING),
    ]
    assert shown().bonus == "c"
    assert shown().num_in_state.total() == 8


def test_the_terminal_shows_runs_of_like_nodes_and_a_legend() -> None:
    assert list(tree_lines(shown(), colour=False))[:9] == [
        "c  (the last token before step 4)",
        "├─ ✓ a  (forced)",
        "│  ├─ ✗ b  (forced)",
        "│  └─ … c  (ngram)",
        "│     └─ ✂ c  (ngram)",
        "├─ ✗ b  (ngram)",
        "│  └─ ○ c  (ngram)",
        "├─ ⊘ ab  (ngram)",
        "└─ · <-1>  (forced)",
    ]
    coloured = "\n".join(tree_lines(shown(), colour=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == "\n".join(tree_lines(shown(), colour=False))
    assert "\x1b[1;36ma\x1b[0m" in coloured


def test_colour_is_for_terminals_whose_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal())
    assert not wants_colour(StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


def test_the_picture_has_a_box_for_every_node_inside_it() -> None:
    picture = ElementTree.fromstring(draw_tree(shown()))
    boxes = [one for one in picture.iter("{http://www.w3.org/2000/svg}rect") if one.get("rx")]
    tips = [tip.text for box in boxes for tip in box]
    assert len(tips) == 9
    assert "ab: ngram, verified, and rejected by the grammar" in tips
    for box in boxes:
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= float(picture.attrib["width"])
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= float(picture.attrib["height"])
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(places) == len(boxes), "none lies on another"


def test_a_token_s_text_can_be_printed() -> None:
    assert text_of(TEXTS.index(b"a"), VOCABULARY) == "a"
    assert text_of(-1, VOCABULARY) == "<-1>"
    assert all(text_of(token, VOCABULARY).isprintable() for token in range(VOCABULARY.vocab_size))


def test_a_step_of_a_real_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "tree.svg"
    argv = ["tree", "--prompt", "hi", "--json-schema", SCHEMA, "--algorithm", "forced+ngram"]
    argv += ["--model", str(model), "--dtype", "float32"]
    assert main([*argv, "--svg", str(svg)]) == 0
    out = capsys.readouterr().out
    assert "drafted by forced, ngram" in out
    assert "\x1b" not in out
    assert re.search(r"✓ \d+ accepted", out)
    ElementTree.parse(svg)
    assert main([*argv, "--step", "0"]) == 0
    assert "before step 0)" in capsys.readouterr().out
    assert main([*argv, "--step", "999"]) == 2
    assert re.search(r"--step = 999; this run had steps 0 to \d+", capsys.readouterr().err)


def test_statistics_by_source_add_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "--prompt", "hi", "--json-schema", SCHEMA, "--model", str(model), "--dtype", "float32"]
    assert main([*argv, "--algorithm", "forced+ngram", "--budget", "6", "--output", "json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out.splitlines()[-1])["summary"]
    sources = summary["sources"]
    assert list(sources) == ["forced", "ngram"]
    for kind, total in (("verified", "draft_tokens"), ("pruned", "pruned"), ("accepted", "accepted")):
        assert sum(counts[f"num_{kind}"] for counts in sources.values()) == summary[f"num_{total}"]
    for counts in sources.values():
        assert counts["num_proposed"] == counts["num_verified"] + counts["num_pruned"]
        assert counts["num_accepted"] <= counts["num_verified"] <= counts["num_legal"]
        assert counts["drafting_ms"] >= 0
    assert sources["forced"]["num_accepted"] > 0
    assert "ms per accepted" in captured.err
    assert main([*argv, "--output", "json"]) == 0
    assert "sources" not in json.loads(capsys.readouterr().out.splitlines()[-1])["summary"], (
        "nothing is drafted"
    )


def test_a_budget_for_one_algorithm_and_what_is_none(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "generate",
        "--prompt",
        "hihihihi",
        "--max-new-tokens",
        "12",
        "--model",
        str(model),
        "--output",
        "json",
    ]
    assert main([*argv, "--algorithm", "ngram", "--budget", "1"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
    assert summary["num_draft_tokens"] <= summary["num_forwards"], "one a step"
    for budget, message in (
        ("most", "expected auto, or a number"),
        ("0", "config: budget (auto, or a number) = 0"),
    ):
        assert main([*argv, "--algorithm", "ngram", "--budget", budget]) == 2
        assert message in capsys.readouterr().err
    assert main([*argv, "--algorithm", "none", "--budget", "auto"]) == 2
    assert "algorithm 'none' drafts nothing" in capsys.readouterr().err


def test_the_cost_of_a_node_is_the_slope_of_the_measured_steps() -> None:
    costs = NodeCosts()
    costs.add(1, 1, 99.0)  # loads code
    for size in (1, 4, 9):
        costs.add(1, size, 1.0 + 0.25 * size)
        costs.add(2, 2 + size, 5.0 + 0.25 * size)
    assert costs.per_node_s() == pytest.approx(0.25)
    counts = SourceCounts(num_verified=8, num_accepted=4, drafting_s=1.0)
    assert counts.cost_per_accepted_s(0.25) == pytest.approx((8 * 0.25 + 1.0) / 4)


def test_what_was_not_measured_is_not_told() -> None:
    costs = NodeCosts()
    for _ in range(5):
        costs.add(1, 4, 1.0)
    assert costs.per_node_s() is None, "all steps were of one size"
    assert SourceCounts(num_verified=8, num_accepted=4).cost_per_accepted_s(None) is None
    assert SourceCounts(num_verified=8, num_accepted=4, drafting_s=None).cost_per_accepted_s(0.1) is None
    assert SourceCounts(num_verified=8).cost_per_accepted_s(0.1) is None
    table = SourceTable()
    table.add(recorded().drafted, recorded().status, 1.0)
    forced, ngram = table.counts["forced"], table.counts["ngram"]
    assert (forced.num_proposed, forced.num_legal, forced.num_verified) == (2, 2, 2)
    assert (ngram.num_proposed, ngram.num_legal, ngram.num_pruned, ngram.num_verified) == (5, 3, 2, 3)
    assert forced.drafting_s is None, "of two sources nobody said who took how long"
