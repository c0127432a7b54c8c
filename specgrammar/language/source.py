"""The texts of a `GrammarSpec`, checked before native code sees them."""

from __future__ import annotations

import json
import re
from typing import Any

from specgrammar.errors import GrammarCompileError
from specgrammar.protocols.grammar import GrammarKind, GrammarSpec

MAX_SOURCE_BYTES = 1 << 20
MAX_RULES = 2_000
"""Most rules of a grammar: a chain of 5,000 overflows the stack of a native compiler."""
MAX_NESTING = 64
"""Deepest nesting of brackets in any source: native parsers recurse, and a stack overflow ends the process."""

_EBNF_RULE = re.compile(r"(?m)^[ \t]*+[\w-]++[ \t]*+::=")

KINDS: tuple[GrammarKind, ...] = ("json_schema", "json_object", "regex", "grammar", "choice")
WHITESPACES = ("spaced", "compact", "flexible")


def check_source(spec: GrammarSpec) -> None:
    """Raise GrammarCompileError for a spec that no backend could take, whatever it holds."""
    if spec.kind not in KINDS:
        raise GrammarCompileError(f"unknown kind of grammar {spec.kind!r}; expected one of {', '.join(KINDS)}")
    if spec.whitespace not in WHITESPACES:
        raise GrammarCompileError(
            f"unknown whitespace {spec.whitespace!r}; expected one of {', '.join(WHITESPACES)}"
        )
    if not isinstance(spec.source, str):
        raise GrammarCompileError(f"{spec.kind}: the source is a {type(spec.source).__name__}; expected text")
    try:
        num_bytes = len(spec.source.encode())
    except UnicodeEncodeError as error:
        raise GrammarCompileError(
            f"{spec.kind}: a lone surrogate at character {error.start}; write the whole character"
        ) from None
    if num_bytes > MAX_SOURCE_BYTES:
        raise GrammarCompileError(f"{spec.kind}: {num_bytes} bytes; at most {MAX_SOURCE_BYTES}")
    if "\0" in spec.source:
        raise GrammarCompileError(f"{spec.kind}: a NUL character at {spec.source.index(chr(0))}; escape it")


def grammar_syntax(source: str) -> str:
    """What a grammar text is written in: `ebnf` if some line begins with `name ::=`, else `lark`."""
    return "ebnf" if _EBNF_RULE.search(source) else "lark"


def load_json(source: str, what: str) -> Any:
    """Parse strict JSON (no NaN, no duplicate keys). Raises GrammarCompileError, with the position."""
    try:
        return json.loads(source, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise GrammarCompileError(f"{what}: the JSON is nested too deep; at most {MAX_NESTING}") from None
    except ValueError as error:
        raise GrammarCompileError(f"{what}: not valid JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} appears twice in one object")
    return found
