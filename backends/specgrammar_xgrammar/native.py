"""Grammars through xgrammar's own converters, as engines that use xgrammar alone compile them.

What it costs: a fill takes two to six times as long as over our rules (see `ebnf`), and of JSON Schema more is
dropped (see `native_schema`). What it brings: the rows are bit by bit those of such an engine.
"""

from __future__ import annotations

import json

import xgrammar

from specgrammar.errors import WeakenedSchemaError
from specgrammar.language.schema_keywords import check_schema
from specgrammar.language.source import check_source, grammar_syntax, load_json
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar_xgrammar.native_schema import dropped_keywords

_ANY_OBJECT = '{"type": "object"}'


def compile_natively(
    spec: GrammarSpec, compiler: xgrammar.GrammarCompiler, caching: xgrammar.GrammarCompiler
) -> tuple[xgrammar.CompiledGrammar, tuple[str, ...]]:
    """Compile any spec but a choice; returns the grammar and the pointers of what it does not enforce.

    Args:
        spec: `spaced` whitespace is xgrammar's default with `any_whitespace=False`, `flexible` is
            `any_whitespace=True`.
        compiler: keeps nothing.
        caching: keeps compiled rules. It is not asked for what may have rules in a circle (see
            `ebnf.loops_are_simple`), but for the one circle of every schema, "any JSON value".

    Raises:
        WeakenedSchemaError: something is not enforced, and the spec does not allow that.
        GrammarCompileError: the source is broken or too large.
        RuntimeError: xgrammar refuses it.
    """
    check_source(spec)
    source = spec.source
    if spec.kind == "regex":
        return caching.compile_regex(source), ()
    if spec.kind == "grammar":
        is_lark = grammar_syntax(source) == "lark"
        return (compiler.compile_lark if is_lark else compiler.compile_grammar)(source), ()
    if spec.kind == "json_object":
        source = _ANY_OBJECT
    schema = load_json(source, "json_schema")
    check_schema(schema)
    weakened = dropped_keywords(schema)
    if weakened and not spec.allow_weakened:
        raise WeakenedSchemaError(
            f"json_schema: not enforced by xgrammar's own converter: {', '.join(weakened[:8])}"
            f"{', ...' if len(weakened) > 8 else ''}; remove these keywords, allow a weakened schema "
            '(allow_weakened), or use our converter (frontend="specgrammar")'
        )
    has_references = '"$ref"' in json.dumps(schema)
    native = (compiler if has_references else caching).compile_json_schema(
        source,
        any_whitespace=spec.whitespace == "flexible",
        separators=(",", ":") if spec.whitespace == "compact" else None,
    )
    return native, weakened
