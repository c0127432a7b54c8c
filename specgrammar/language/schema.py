"""JSON Schema to a grammar, once for every backend.

Libraries disagree about JSON Schema and drop in silence what they do not implement, so nothing of it is left
to them: what comes out accepts only documents that are valid against the schema as it was given, or the
keyword that prevents that is reported. It is narrower than the schema in these ways, all on purpose:

- An object that lists `properties` and says nothing else is closed (`additionalProperties: false`). That is
  decided after `allOf`, `$ref` and `anyOf` are merged, so that it never makes a composition unsatisfiable.
- Members come in the order of `properties`, then required names that are not listed, then further ones.
- A subschema without `type` that has keywords of some types allows values of those types only.
- Numbers have at most 19 digits before the point, 20 behind it, and no exponent where they have bounds.
- Names of members are spelt as `json.dumps` does; so are the characters of a string with a `pattern` or
  `format`, with `ensure_ascii=False`. Other strings may use every escape of JSON but lone surrogates.
"""

from __future__ import annotations

from specgrammar.errors import GrammarCompileError, WeakenedSchemaError
from specgrammar.language.rules import Grammar
from specgrammar.language.schema_compiler import SchemaCompiler
from specgrammar.language.schema_keywords import check_schema, unenforced
from specgrammar.language.source import MAX_RULES, load_json
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec


def compile_schema(spec: GrammarSpec, facts: BackendFacts) -> tuple[Grammar, tuple[str, ...]]:
    """The grammar of a `json_schema` or `json_object` spec, and the pointers of what it does not enforce.

    Raises:
        WeakenedSchemaError: something is not enforced, and the spec does not allow that.
        GrammarCompileError: the schema is no JSON Schema, too large, or nothing satisfies it.
    """
    schema = {"type": "object"} if spec.kind == "json_object" else load_json(spec.source, "json_schema")
    check_schema(schema)
    compiler = SchemaCompiler(schema, spec.whitespace)
    compiler.weakened.update(dict.fromkeys(unenforced(schema, facts)))
    grammar = compiler.compile()
    weakened = tuple(sorted(compiler.weakened))
    if weakened and not spec.allow_weakened:
        raise WeakenedSchemaError(
            f"json_schema: not enforced: {', '.join(weakened[:8])}{', ...' if len(weakened) > 8 else ''}; "
            "remove these keywords, or allow a weakened schema (allow_weakened)"
        )
    if grammar is None:
        raise GrammarCompileError("json_schema: nothing satisfies this schema")
    if len(grammar.rules) > MAX_RULES:
        raise GrammarCompileError(
            f"json_schema: {len(grammar.rules)} rules; at most {MAX_RULES}, so make the schema smaller"
        )
    return grammar, weakened
