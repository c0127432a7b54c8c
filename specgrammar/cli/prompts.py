"""From the command line and JSONL files to requests."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrammar.checks import check_text, show
from specgrammar.errors import ConfigError
from specgrammar.language.source import load_json
from specgrammar.protocols.grammar import GrammarSpec

CONSTRAINTS = ("schema", "regex", "grammar", "choice")
_KEYS = ("id", "prompt", *CONSTRAINTS)
_REFUSED = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens")
_SUFFIXES = (".json", ".ebnf", ".gbnf", ".lark", ".txt")
_TEXT_MARKS = ("{", '"', "::=", "start:")  # of JSON, EBNF and Lark, which may hold a slash


@dataclass(frozen=True)
class Prompt:
    """One line of work."""

    id: str
    text: str
    grammar: GrammarSpec | None


def prompts_from(arguments: argparse.Namespace) -> list[Prompt]:
    """The prompts that a command line names; raises ConfigError for a file that is not to format."""
    default = _constraint_of_flags(arguments)
    if arguments.prompt is not None:
        return [_checked(Prompt("0", arguments.prompt, default), "--prompt")]
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for where, line in _lines(arguments.prompts):
        prompt = _checked(_parse(line, where, default, arguments), where)
        if prompt.id in seen:
            raise ConfigError(f"{where}: the id {prompt.id!r} was used before; ids must be unique")
        seen.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{arguments.prompts}: no prompts in it; give one JSON object a line")
    return prompts


def _lines(path: str) -> Iterator[tuple[str, str]]:
    # At line feeds alone: `splitlines` also splits at U+2028 and others, which JSON allows inside a string.
    for number, line in enumerate(_read(Path(path)).split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _parse(line: str, where: str, default: GrammarSpec | None, arguments: argparse.Namespace) -> Prompt:
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{where}: a lone surrogate (\\ud800 to \\udfff without the other half); write the whole character"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
        raise ConfigError(f"{where}: expected an object with the strings 'id' and 'prompt'")
    for key in entry:
        if key in _REFUSED:
            raise ConfigError(
                f"{where}: {key} is not supported: a draft tree's nodes would need it each by itself"
            )
        if key not in _KEYS:
            raise ConfigError(f"{where}: unknown key {show(key)}; known: {', '.join(_KEYS)}")
    if not isinstance(entry.get("id"), str | int) or isinstance(entry["id"], bool) or entry["id"] == "":
        raise ConfigError(f"{where}: expected a string 'id' that is not empty")
    named = [key for key in CONSTRAINTS if key in entry]
    if len(named) > 1:
        raise ConfigError(f"{where}: {' and '.join(named)}: at most one constraint a prompt")
    grammar = _spec(named[0], entry[named[0]], where, _json_options(arguments)) if named else default
    return Prompt(str(entry["id"]), entry["prompt"], grammar)


def _constraint_of_flags(arguments: argparse.Namespace) -> GrammarSpec | None:
    options = _json_options(arguments)
    if arguments.json_schema is not None:
        text, file = _text_or_file("--json-schema", arguments.json_schema)
        if file:
            load_json(text, f"--json-schema: {file}")  # its syntax, while the file's name is known
        return _spec("schema", text, "--json-schema", options)
    if arguments.json:
        return GrammarSpec.json_object(whitespace=arguments.whitespace)
    if arguments.regex is not None:
        return _spec("regex", arguments.regex, "--regex", options)
    if arguments.grammar is not None:
        text, _ = _text_or_file("--grammar", arguments.grammar)
        return _spec("grammar", text, "--grammar", options)
    if arguments.choice is not None:
        return _spec("choice", arguments.choice, "--choice", options)
    return None


def _spec(kind: str, value: Any, where: str, json_options: Mapping[str, Any]) -> GrammarSpec:
    if kind == "schema":
        if not isinstance(value, str | dict | bool):
            raise ConfigError(f"{where}: a schema is an object, a boolean, or JSON text")
        return GrammarSpec.json_schema(value, **json_options)
    if kind == "choice":
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{where}: choice is a list of strings")
        for item in value:
            check_text(f"{where}: choice", item, empty=True)
        return GrammarSpec.choice(value)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {kind} is a string")
    return GrammarSpec.regex(value) if kind == "regex" else GrammarSpec.grammar(value)


def _json_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"whitespace": arguments.whitespace, "allow_weakened": arguments.allow_weakened}


def _text_or_file(flag: str, value: str) -> tuple[str, str]:
    """A flag's value: the content of the file of that name and the name, or the text itself and no name."""
    path = Path(value)
    try:
        is_file = path.exists() and not path.is_dir()  # a pipe (`<(...)`, /dev/stdin) is as good as a file
    except (OSError, ValueError):  # too long, or a NUL: no name of a file
        is_file = False
    if is_file:
        return _read(path), value
    if _looks_like_file(value):
        raise ConfigError(f"{flag}: there is no file {show(value)}")
    return value, ""


def _looks_like_file(value: str) -> bool:
    """Whether a value is a file's name, misspelt or not, rather than a schema or a grammar."""
    if any(mark in value for mark in _TEXT_MARKS) or any(character.isspace() for character in value):
        return False
    return "/" in value or os.sep in value or Path(value).suffix.lower() in _SUFFIXES


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the path
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _checked(prompt: Prompt, where: str) -> Prompt:
    check_text(f"{where}: prompt", prompt.text, empty=True)
    if not prompt.text.strip():
        raise ConfigError(f"{where}: the prompt is empty; give it some text")
    return prompt
