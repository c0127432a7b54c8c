"""`specgrammar generate` with a grammar that does not begin at once, on a tiny local model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specgrammar.cli.main import main
from tests.cli.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)  # of the random weights
    return write_tiny_model(tmp_path_factory.mktemp("model"))


Shown = tuple[list[dict[str, Any]], str]


def generate(model: Path, capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> Shown:
    """The JSON lines, and what was said beside them."""
    capsys.readouterr()
    argv = ["generate", "--model", str(model), "--dtype", "float32", "--output", "json", "--raw-prompt", *flags]
    assert main(argv) == status
    said = capsys.readouterr()
    return [json.loads(line) for line in said.out.splitlines()], said.err


def test_a_grammar_begins_behind_a_text_or_with_one(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"id": str(i), "prompt": f"hello {i}"}) for i in range(12)))
    (*free, _), _ = generate(model, capsys, "--prompts", str(file), "--max-new-tokens", "24")
    plain = re.compile(r"(?<=..)[C-Zc-z]{2}", re.ASCII)
    found = next(output for output in free if plain.search(output["text"]))
    marker, prompt = plain.search(found["text"])[0], f"hello {found['id']}"  # type: ignore[index]  # found
    before = found["text"][: found["text"].index(marker)]

    def shown(*flags: str) -> dict[str, Any]:
        (output, summary), said = generate(model, capsys, "--prompt", prompt, "--max-new-tokens", "40", *flags)
        assert summary["summary"]["num_never_engaged"] == 0
        assert "never began" not in said
        return output

    behind = shown("--grammar-after", marker, "--regex", "[0-9]{4}", "--algorithm", "ngram")
    assert re.fullmatch(re.escape(before + marker) + "[0-9]{4}", behind["text"])
    inside = shown("--grammar-at", marker, "--regex", f"{marker}[0-9]{{4}}", "--algorithm", "chain")
    assert inside["text"] == behind["text"]
    assert "grammar_engaged" not in behind | inside


def test_a_grammar_that_never_began_is_counted_and_said(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"id": "free", "prompt": "a"}, {"id": "a", "prompt": "hello", "regex": "[0-9]{4}"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    flags = ("--prompts", str(file), "--max-new-tokens", "9", "--grammar-after", "</think>")
    ((free, gated, summary), said) = generate(model, capsys, *flags)
    assert "grammar_engaged" not in free
    assert gated["grammar_engaged"] is False
    assert summary["summary"]["num_never_engaged"] == 1
    assert "specgrammar: note: the grammar never began in 1 of 2 requests, which are free text: 'a'\n" in said


def test_a_prompt_that_ended_the_block_starts_the_grammar_at_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--regex", "[0-9]{4}", "--max-new-tokens", "9", "--grammar-after", "</think>")
    prompt = "<think>a</think>b<think></think>\n"
    for resets, engaged in (((), False), (("--grammar-reset", "<think>"), True)):
        ((output, _), _) = generate(model, capsys, "--prompt", prompt, *flags, *resets)
        assert (output.get("grammar_engaged", True), output["text"].isdigit()) == (engaged, engaged)
    ((output, _), _) = generate(
        model, capsys, "--prompt", prompt + "<think>", *flags, "--grammar-reset", "<think>"
    )
    assert output["grammar_engaged"] is False


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--grammar-after", "x"), "--grammar-after: there is no grammar that could begin"),
        (("--regex", "a", "--grammar-after", ""), "--grammar-after = ''; expected text that is not empty"),
        (("--regex", "a", "--grammar-at", "a", "--grammar-reset", "x"), "no --grammar-after to look for"),
        (("--regex", "a", "--grammar-at", "b"), r"does not begin with the implicit marker \[\d+\]: it refuses"),
    ],
)
def test_starts_that_cannot_be_are_refused(
    model: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    status = 1 if "implicit" in words else 2
    _, said = generate(model, capsys, "--prompt", "hello", *flags, status=status)
    assert re.search(words, said)
