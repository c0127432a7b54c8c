"""vLLM's kinds of structured output as grammars of ours."""

from __future__ import annotations

import json
from typing import Any

from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.native import one_line
from specgrammar.protocols.grammar import GrammarSpec, Whitespace

KINDS = ("JSON", "JSON_OBJECT", "REGEX", "GRAMMAR", "CHOICE", "STRUCTURAL_TAG")
"""The names of vLLM's `StructuredOutputOptions`."""


def spec_of(
    kind: str, source: str, *, whitespace: Whitespace, allow_weakened: bool, takes_tags: bool
) -> GrammarSpec:
    """The grammar of a request.

    Args:
        kind: one of `KINDS`.
        source: what vLLM keeps for it: a JSON Schema, a pattern, a grammar, a JSON array of choices, a
            structural tag; empty for `JSON_OBJECT`.
        whitespace: of JSON; a structural tag says for itself.
        allow_weakened: see `GrammarSpec`; nobody looks into the schemas of a structural tag.
        takes_tags: whether the backend takes xgrammar's EBNF, which structural tags are written in.

    Raises:
        GrammarCompileError: a structural tag that is broken, or that the backend cannot take.
    """
    match kind:
        case "JSON":
            return GrammarSpec("json_schema", source, whitespace, allow_weakened)
        case "JSON_OBJECT":
            return GrammarSpec.json_object(whitespace=whitespace)
        case "REGEX":
            return GrammarSpec.regex(source)
        case "GRAMMAR":
            return GrammarSpec.grammar(source)
        case "CHOICE":
            return GrammarSpec("choice", source)
        case "STRUCTURAL_TAG" if takes_tags:
            return GrammarSpec.grammar(_tag_as_ebnf(source))
        case "STRUCTURAL_TAG":
            raise GrammarCompileError(
                "structural_tag: only xgrammar has them; use the backend 'xgrammar' with grammars = 'vllm'"
            )
    raise GrammarCompileError(f"structured output of the kind {kind} is unknown; known: {', '.join(KINDS)}")


def _tag_as_ebnf(source: str) -> str:
    """A structural tag, in either of vLLM's forms, in the EBNF that xgrammar prints and reads."""
    import xgrammar

    try:
        tag: dict[str, Any] = json.loads(source)
        if "structures" not in tag:
            return str(xgrammar.Grammar.from_structural_tag(source))
        items = [
            xgrammar.StructuralTagItem(begin=one["begin"], schema=json.dumps(one["schema"]), end=one["end"])
            for one in tag["structures"]
        ]
        return str(xgrammar.Grammar.from_structural_tag(items, tag["triggers"]))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise GrammarCompileError(f"structural_tag: {one_line(error)}") from error
