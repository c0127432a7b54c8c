"""The command line as a user meets it, on a tiny local model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import torch

from specgrammar import __version__
from specgrammar.cli import generate
from specgrammar.cli.flags import add_flags
from specgrammar.cli.generate import config_from
from specgrammar.cli.main import main
from specgrammar.config import Config
from specgrammar.runtime.engine import Engine
from specgrammar_transformers import TransformersAdapter
from tests.cli.tiny_model import write_tiny_model

SCHEMA = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'


@dataclass(frozen=True)
class Done:
    """What a call printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """The lines that say that something is wrong."""
        return [line for line in self.stderr.splitlines() if line.startswith("specgrammar: error:")]


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: a new one would spend most of its time importing torch."""

    def call(*arguments: str, expect: int | None = None) -> Done:
        argv = list(arguments)
        if argv[0] == "generate" and "--help" not in argv:
            argv += ["--model", str(model), "--dtype", "float32"]
        capsys.readouterr()
        try:
            status = main(argv)
        except SystemExit as exit_:  # argparse
            status = int(str(exit_.code))
        captured = capsys.readouterr()
        done = Done(status, captured.out, captured.err)
        assert "Traceback" not in done.stderr, done.stderr
        assert expect is None or status == expect, done
        return done

    return call


def lines_of(done: Done) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *outputs, last = [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")]
    return outputs, last["summary"]


def test_json_output_has_the_promised_keys(run: Run) -> None:
    done = run(
        "generate",
        "--prompt",
        "hi",
        "--json-schema",
        SCHEMA,
        "--algorithm",
        "ngram",
        "--output",
        "json",
        expect=0,
    )
    (output,), summary = lines_of(done)
    assert list(output) == [
        *("id", "text", "token_ids", "finish_reason", "error"),
        *("num_tokens", "num_verify_steps", "mean_accept_length"),
    ]
    assert json.loads(output["text"]) in ({"ok": True}, {"ok": False})
    assert (output["finish_reason"], output["error"]) == ("stop", None)
    assert output["num_tokens"] == len(output["token_ids"])
    assert output["mean_accept_length"] == pytest.approx(
        output["num_tokens"] / output["num_verify_steps"], abs=1e-3
    )
    assert summary["num_tokens"] == output["num_tokens"]
    assert summary["num_stale_drafts"] == 0
    drafts = [summary[f"num_{kind}"] for kind in ("accepted", "rejected_by_grammar", "rejected_by_target")]
    assert sum(drafts) == summary["num_draft_tokens"]
    assert {"propose", "launch", "accept"} <= set(summary["seconds_by_stage"])
    assert "mean accept length" in done.stderr


def test_a_file_of_prompts_comes_out_in_its_order_and_failures_stay_alone(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    entries: list[dict[str, Any]] = [
        {"id": "long", "prompt": "a", "regex": "[0-9]{40}"},
        {"id": "broken", "prompt": "a", "schema": {"type": "nothing"}},
        {"id": 3, "prompt": "b", "choice": ["yes", "no"]},
        {"id": "free", "prompt": "c"},
        {"id": "ebnf", "prompt": "c", "grammar": 'root ::= "x" | "y"'},
    ]
    file.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    done = run("generate", "--prompts", str(file), "--output", "json", "--max-new-tokens", "60", expect=1)
    outputs, summary = lines_of(done)
    assert [output["id"] for output in outputs] == ["long", "broken", "3", "free", "ebnf"]
    by_id = {output["id"]: output for output in outputs}
    assert re.fullmatch("[0-9]{40}", by_id["long"]["text"])
    assert by_id["3"]["text"] in ("yes", "no")
    assert by_id["ebnf"]["text"] in ("x", "y")
    assert by_id["broken"]["finish_reason"] == "error"
    assert "nothing" in by_id["broken"]["error"]
    assert summary["num_errors"] == 1
    assert "request 'broken'" in done.stderr


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_backends_and_algorithms_swap_by_a_flag_or_a_file(run: Run, tmp_path: Path, backend: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'backend = "{backend}"\nalgorithm = "ngram"\n[algorithm_options]\nnum_draft_tokens = 3\n'
    )
    texts = set()
    for flags in (
        ["--config", str(config)],
        ["--backend", backend],
        ["--backend", backend, "--algorithm", "chain"],
    ):
        done = run("generate", "--prompt", "hi", "--regex", "(ab){6}c?", "--output", "json", *flags, expect=0)
        (output,), summary = lines_of(done)
        assert summary["backend"] == backend
        texts.add(output["text"])
    assert len(texts) == 1


def test_text_output_is_the_text_alone(run: Run) -> None:
    done = run("generate", "--prompt", "hi", "--choice", "left", "right", expect=0)
    assert done.stdout in ("left\n", "right\n")


def test_same_seed_same_tokens_whatever_the_algorithm(run: Run) -> None:
    flags = ["--prompt", "hi", "--regex", "[ab]{30}", "--temperature", "1", "--seed", "5", "--output", "json"]
    seen = {
        run("generate", *flags, "--algorithm", name, expect=0).stdout.split('"num_tokens"')[0]
        for name in ("none", "ngram", "chain")
    }
    assert len(seen) == 1
    other = run("generate", *flags[:-4], "--seed", "6", "--output", "json", expect=0)
    assert other.stdout.split('"num_tokens"')[0] not in seen


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--json-schema", '{"type": "object"'], "not valid JSON"),
        (["--json-schema", '{"type": "string", "frobnicate": 3}'], "frobnicate"),
        (["--json-schema", '{"type": "integer", "minimum": 3, "maximum": 2}'], ""),
        (["--json-schema", "[" * 10_000 + "]" * 10_000], "nested too deep"),
        (["--json-schema", '{"not":' * 10_000 + "{}" + "}" * 10_000], "nested too deep"),
        (["--json-schema", "missing file"], "not valid JSON"),
        (["--regex", "("], ""),
        (["--regex", "(" * 10_000 + "a" + ")" * 10_000], "deep"),
        (["--grammar", "root ::= root"], ""),
        (["--grammar", "nonsense"], ""),
    ],
    ids=lambda value: value[1][:24] if isinstance(value, list) else "",
)
def test_hostile_grammars_end_with_one_clear_message(
    run: Run, backend: str, flags: list[str], words: str
) -> None:
    done = run("generate", "--prompt", "hi", "--backend", backend, "--max-new-tokens", "8", *flags)
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert len(done.errors) == 1, done.stderr
    assert words in done.errors[0]
    assert len(done.errors[0]) < 600
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "   "], "prompt is empty"),
        (["--prompts", "missing.jsonl"], "cannot be read"),
        (["--prompt", "a", "--json-schema", "no.json"], "--json-schema: there is no file 'no.json'"),
        (["--prompt", "a", "--json-schema", "no/such"], "--json-schema: there is no file 'no/such'"),
        (["--prompt", "a", "--grammar", "no.EBNF"], "--grammar: there is no file 'no.EBNF'"),
        (["--prompt", "a", "--grammar", "no.lark"], "--grammar: there is no file 'no.lark'"),
        (["--prompt", "a", "--grammar", "/"], "--grammar: there is no file '/'"),
        (["--prompt", "a", "--algorithm", "eagel"], "found: chain, eagle, forced, ngram, none"),
        (["--prompt", "a", "--backend", "outlines2"], "found: llguidance, xgrammar"),
        (
            ["--prompt", "a", "--algorithm", "ngram", "--algorithm-option", "num_draft_tokens=0"],
            "num_draft_tokens",
        ),
        (["--prompt", "a", "--algorithm-option", "depth"], "expected KEY=VALUE"),
        (["--prompt", "a", "--algorithm", "ngram", "--acceptance", "rejection"], "rejection"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top_p"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens = 0"),
        (["--prompt", "a", "--batch-size", "0"], "max_batch_size = 0"),
        (["--prompt", "a", "--stop", ""], "stop_strings[0] = ''"),
        (["--prompt", "a", "--stop", "\udcff"], "stop_strings[0] = '\\udcff'"),
        (["--prompt", "\udcff"], "--prompt: prompt = '\\udcff'; expected UTF-8"),
        (["--prompt", "a", "--regex", "\udcff"], "lone surrogate"),
        (["--prompt", "a", "--grammar", "\udcff"], "lone surrogate"),
        (["--prompt", "a", "--json-schema", '"\udcff"'], "lone surrogate"),
        (["--prompt", "a", "--choice", "b", "\udcff"], "--choice: choice = '\\udcff'"),
        (["--prompts", "\udcff"], "\\udcff cannot be read"),
        (["--prompts", "a\0"], "cannot be read"),
        (["--prompt", "a", "--top-k", "9" * 23], "top_k"),
        (["--prompt", "a", "--top-k", "1.5"], "--top-k"),
        (["--prompt", "a", "--top-k", "9" * 5_000], "--top-k"),
        (["--prompt", "a", "--seed", "1e3"], "--seed"),
        (["--prompt", "a", "--seed", str(2**63)], "seed"),
        (["--prompt", "a", "--temperature", "nan"], "temperature = nan"),
        (["--prompt", "a", "--temperature", "inf"], "temperature = inf"),
        (["--prompt", "a", "--temperature", "x" * 5_000], "--temperature"),
        (["--prompt", "a", "--batch-size", "9" * 23], "max_batch_size"),
        (["--prompt", "a", "--max-new-tokens", "9" * 23], "max_new_tokens"),
        (["--prompt", "a", "--backend-option", "max_threads=" + "9" * 23], "max_threads"),
        (["--prompt", "a", "--backend-option", "max_threads=" + "9" * 5_000], "max_threads"),
        (["--prompt", "a", "--backend-option", "max_threads=" + "[" * 5_000], "max_threads"),
        (
            ["--prompt", "a", "--algorithm", "ngram", "--algorithm-option", "capacity=" + "9" * 23],
            "capacity = 9",
        ),
        (["--promt", "a"], "--prompt"),
        (["--prompt", "a", "--json-schema=--"], "--json-schema=--: '--' cannot be a value"),
        ([], "--prompt"),
        (["--prompt", "a", "--config", "missing.toml"], "cannot be read"),
        (["--prompt", "a", "--device", "quantum"], "quantum"),
        (["--prompt", "x" * 40_000], "shorten the prompt"),
    ],
)
def test_a_wrong_call_ends_with_one_clear_message(run: Run, flags: list[str], words: str) -> None:
    done = run("generate", *flags)
    assert done.returncode in (1, 2)
    assert len(done.errors) == 1, done.stderr
    assert words in done.errors[0]
    assert len(done.errors[0]) < 1_200
    assert "usage:" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "expected an object"),
        ("{", "not a JSON object"),
        ('{"id": "a"}', "'prompt'"),
        ('{"prompt": "a"}', "'id'"),
        ('{"id": "a", "prompt": "a", "regex": "a", "choice": ["a"]}', "regex and choice"),
        ('{"id": "a", "prompt": "a", "choice": "a"}', "list of strings"),
        ('{"id": "a", "prompt": "a", "regex": 3}', "regex is a string"),
        ('{"id": "a", "prompt": "a", "temprature": 1}', "unknown key 'temprature'"),
        ('{"id": "a", "prompt": "a", "logit_bias": {}}', "logit_bias is not supported"),
        ('{"id": "b", "prompt": "a"}', "'b' was used before"),
        ("[" * 100_000, "not a JSON object"),
        ('{"id": "a", "prompt": "' + "\\ud800" + '"}', "lone surrogate"),
        ('{"id": "' + "\\udfff" + '", "prompt": "a"}', "lone surrogate"),
        ('{"id": "a", "prompt": "a", "choice": ["' + "\\ud800" + '"]}', "lone surrogate"),
        ('{"id": "a", "prompt": "a", "schema": {"const": "' + "\\ud800" + '"}}', "lone surrogate"),
        ('{"id": "a", "prompt": "a", "' + "\\ud800" + '": 1}', "lone surrogate"),
        ('{"id": true, "prompt": "a"}', "a string 'id'"),
        ('{"id": "", "prompt": "a"}', "not empty"),
        ('{"id": ' + "9" * 5_000 + ', "prompt": "a"}', "not a JSON object"),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(run: Run, tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": "b", "prompt": "a"}\n' + line + "\n")
    done = run("generate", "--prompts", str(file), expect=2)
    (error,) = done.errors
    assert f"{file}:2: " in error
    assert words in error


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_at_line_feeds_alone(run: Run, tmp_path: Path, end: str) -> None:
    file = tmp_path / "prompts.jsonl"
    separators = "\u2028\u2029\x85"  # to Python's `splitlines`; text to JSON
    lines = [f'{{"id": "a{separators}", "prompt": "a{separators}", "choice": ["{separators}"]}}', "", "{"]
    file.write_bytes("\ufeff".encode() + end.join(lines).encode())
    (error,) = run("generate", "--prompts", str(file), expect=2).errors
    assert f"{file}:3: " in error
    file.write_bytes("\ufeff".encode() + end.join(lines[:2]).encode())
    outputs, _ = lines_of(run("generate", "--prompts", str(file), "--output", "json", expect=0))
    assert [(output["id"], output["text"]) for output in outputs] == [(f"a{separators}", separators)]


def test_a_schema_file_may_begin_with_a_byte_order_mark(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA, encoding="utf-8-sig")
    done = run("generate", "--prompt", "a", "--json-schema", str(file), expect=0)
    assert "ok" in json.loads(done.stdout)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not valid JSON"), ("", "not valid JSON"), ("[" * 100_000, "nested too deep")],
    ids=["broken", "empty", "deep"],
)
def test_a_schema_file_that_is_not_json_is_named_before_a_model_is_loaded(
    run: Run, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    # The wrong --device would be refused on loading.
    flags = ["--prompt", "a", "--device", "quantum"]
    (error,) = run("generate", *flags, "--json-schema", str(file), expect=2).errors
    assert f"--json-schema: {file}: " in error
    assert words in error
    (error,) = run("generate", *flags, "--json-schema", str(tmp_path / "no"), expect=2).errors
    assert "there is no file" in error


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grammar", 'root::="a/b.txt"'], "a/b.txt"),
        (["--grammar", "start:/xy/", "--backend", "llguidance"], "xy"),
        (["--json-schema", '{"const":"a/b.json"}'], '"a/b.json"'),
    ],
)
def test_a_grammar_on_the_command_line_may_hold_what_file_names_hold(
    run: Run, flags: list[str], text: str
) -> None:
    assert run("generate", "--prompt", "a", *flags, expect=0).stdout == f"{text}\n"


def test_text_output_notes_what_the_text_does_not_say(run: Run) -> None:
    length = "specgrammar: note: request '0' stopped after 5 tokens (length): the text is incomplete"
    cut = run("generate", "--prompt", "a", "--regex", "[0-9]{40}", "--max-new-tokens", "5", expect=0)
    assert re.fullmatch("[0-9]{5}\n", cut.stdout)
    assert [line for line in cut.stderr.splitlines() if "note" in line] == [length]
    schema = '{"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 2, "uniqueItems": true}'
    flags = ["--prompt", "a", "--json-schema", schema]
    assert "uniqueItems" in run("generate", *flags, expect=1).errors[0]
    weak = run("generate", *flags, "--allow-weakened", expect=0)
    assert weak.stdout == "[7, 7]\n"
    notes = [line for line in weak.stderr.splitlines() if "note" in line]
    assert notes == ["specgrammar: note: request '0': not enforced: /uniqueItems"]
    structured = run("generate", *flags, "--allow-weakened", "--output", "json", expect=0)
    assert "note" not in structured.stderr
    assert lines_of(structured)[0][0]["weakened"] == ["/uniqueItems"]


def test_the_table_is_left_out_where_every_request_failed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    failing = '{"id": "bad", "prompt": "a", "regex": "("}\n'
    file.write_text(failing)
    done = run("generate", "--prompts", str(file), "--output", "json", expect=1)
    assert "statistic" not in done.stderr
    assert lines_of(done)[1]["num_errors"] == 1
    file.write_text(failing + '{"id": "good", "prompt": "a", "choice": ["x"]}\n')
    assert "statistic" in run("generate", "--prompts", str(file), expect=1).stderr


def test_a_line_s_own_grammar_wins_over_the_flags(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 0, "prompt": "a", "choice": ["own"]}\n{"id": 1, "prompt": "a"}\n')
    assert run("generate", "--prompts", str(file), "--choice", "flag", expect=0).stdout == "own\nflag\n"


def test_engine_and_adapter_have_room_for_the_same_number_of_requests(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []

    def load(*arguments: Any, **options: Any) -> Any:
        rooms.append(options["max_batch_size"])
        return load_adapter(*arguments, **options)

    def build(config: Config, adapter: Any) -> Engine:
        rooms.append(config.max_batch_size)
        return build_engine(config, adapter)

    load_adapter, build_engine = TransformersAdapter.load, Engine.build
    monkeypatch.setattr(TransformersAdapter, "load", load)
    monkeypatch.setattr(Engine, "build", build)
    run("generate", "--prompt", "a", "--max-new-tokens", "2", "--batch-size", "60000", expect=0)
    assert rooms == [1, 1]


def test_output_is_utf_8_whatever_the_locale(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    run("generate", "--prompt", "a", "--choice", "€😀", expect=0)
    assert out.buffer.getvalue().decode() == "€😀\n"


def test_plugins_lists_what_each_can_do(run: Run) -> None:
    rows = [json.loads(line) for line in run("plugins", "--output", "json", expect=0).stdout.splitlines()]
    by_name = {(row["kind"], row["name"]): row for row in rows}
    assert by_name["backend", "llguidance"]["state"] == "available"
    assert "lark" in by_name["backend", "llguidance"]["abilities"]
    assert "lark" not in by_name["backend", "xgrammar"]["abilities"]
    assert "tree of up to 8 nodes" in by_name["algorithm", "ngram"]["abilities"]
    assert "num_draft_tokens" in by_name["algorithm", "ngram"]["abilities"]
    assert all(row["distribution"].startswith("specgrammar ") for row in rows)
    table = run("plugins", expect=0).stdout
    assert "xgrammar" in table
    assert "abilities" in table


def test_help_says_what_every_option_does_and_what_holds_without_it(run: Run) -> None:
    text = " ".join(run("generate", "--help", expect=0).stdout.split())
    options = text[text.index("options: ") :]
    for flag, default in {
        "--whitespace": "spaced",
        "--backend": "xgrammar",
        "--algorithm": "none",
        "--acceptance": "target_only",
        "--batch-size": "8",
        "--temperature": "0.0",
        "--top-p": "1.0",
        "--top-k": "0",
        "--min-p": "0.0",
        "--seed": "0",
        "--max-new-tokens": "256 tokens",
        "--stop": "none",
        "--model": "SmolLM2-135M-Instruct",
        "--device": "auto",
        "--dtype": "auto",
        "--output": "text",
    }.items():
        described = options[options.index(f" {flag} ") + len(flag) + 2 :].split(" --")[0]
        assert f"(default: {default})" in described, flag
    assert "a line's own grammar wins over the flags'" in options


def test_every_option_has_a_help_text() -> None:
    command = argparse.ArgumentParser()
    generate.add_parser(command.add_subparsers())
    parsers = next(action.choices for action in command._actions if action.choices is not None)
    assert isinstance(parsers, dict)
    assert [a.option_strings for a in parsers["generate"]._actions if not a.help] == []


def test_version(run: Run) -> None:
    assert run("--version", expect=0).stdout == f"specgrammar {__version__}\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(run: Run) -> None:
    done = run("generate", "--prompt", "a", "--device", "cuda")
    assert done.returncode == 2
    assert "cuda" in done.stderr.splitlines()[-1]


def test_in_a_process_of_its_own(model: Path) -> None:
    """Exit status and streams, with a reader that leaves early."""
    command = [sys.executable, "-m", "specgrammar", "generate", "--model", str(model), "--output", "json"]
    good = subprocess.run(
        [*command, "--prompt", "a", "--choice", "x"], capture_output=True, text=True, check=False
    )
    assert (good.returncode, json.loads(good.stdout.splitlines()[0])["text"]) == (0, "x")
    bad = subprocess.run(
        [*command, "--prompt", "a", "--regex", "("], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 1
    assert "Traceback" not in bad.stderr
    left = subprocess.Popen(
        [*command, "--prompt", "a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert left.stdout is not None
    left.stdout.close()
    assert "Traceback" not in (left.stderr.read() if left.stderr else "")
    assert left.wait() == 0
    if left.stderr:
        left.stderr.close()


def test_no_setting_of_a_config_file_is_lost(tmp_path: Path) -> None:
    """Every field of the file arrives, flags override theirs alone."""
    config = Config(
        backend="llguidance",
        backend_options={"max_size": 1000},
        algorithm="ngram",
        algorithm_options={"depth": 3},
        acceptance="rejection",
        mask_policy="lazy",
        max_batch_size=3,
        compile_timeout_s=1.5,
        compile_memory_mb=512,
        compile_cache_entries=7,
        compile_cache_mb=9,
        budget="auto",
    )
    default = Config()
    fields = {field.name for field in dataclasses.fields(Config)}
    assert all(getattr(config, name) != getattr(default, name) for name in fields)  # a new field belongs here
    lines, tables = [], []
    for name in sorted(fields):
        value = getattr(config, name)
        if isinstance(value, dict):
            tables += [f"[{name}]", *(f"{key} = {json.dumps(item)}" for key, item in value.items())]
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    path = tmp_path / "config.toml"
    path.write_text("\n".join((*lines, *tables)))
    parser = argparse.ArgumentParser()
    add_flags(parser)
    given = ["--config", str(path), "--prompt", "a"]
    assert config_from(parser.parse_args(given)) == config
    flags = ["--mask-policy", "auto", "--batch-size", "2", "--budget", "5"]
    overridden = config_from(parser.parse_args([*given, *flags]))
    assert overridden == dataclasses.replace(config, mask_policy="auto", max_batch_size=2, budget=5)
