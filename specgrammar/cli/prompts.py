"""From the command line and JSONL files to requests."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgrammar.checks import check_text, show
from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import GrammarSpec

CONSTRAINTS = ("schema", "regex", "grammar", "choice")
_KEYS = ("id", "prompt", *CONSTRAINTS)
_REFUSED = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens")


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
        return _spec("schema", _text_or_file(arguments.json_schema), "--json-schema", options)
    if arguments.json:
        return GrammarSpec.json_object(whitespace=arguments.whitespace)
    if arguments.regex is not None:
        return _spec("regex", arguments.regex, "--regex", options)
    if arguments.grammar is not None:
        return _spec("grammar", _text_or_file(arguments.grammar), "--grammar", options)
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


def _text_or_file(value: str) -> str:
    """A flag's value: the content of the file of that name where there is one, else the text itself."""
    try:
        is_file = Path(value).is_file()
    except (OSError, ValueError):  # too long, or a NUL: no name of a file
        is_file = False
    return _read(Path(value)) if is_file else value


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
