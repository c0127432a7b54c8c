"""xgrammar's own converters behind the backend: the same rows, and an honest account of what they drop."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgrammar

from specgrammar.errors import ConfigError, GrammarCompileError, WeakenedSchemaError
from specgrammar.protocols.grammar import GrammarSpec, Vocabulary, Whitespace
from specgrammar_xgrammar import XGrammarBackend
from specgrammar_xgrammar.native_schema import dropped_keywords

BYTES = Vocabulary((*(bytes([b]) for b in range(256)), b""), (256,), frozenset({256}))
BACKEND = XGrammarBackend(BYTES, frontend="native")

INTEGER: dict[str, Any] = {"type": "integer"}
STRING: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}


def of(kind: str, **keywords: Any) -> dict[str, Any]:
    return {"type": kind, **keywords}


def accepts(spec: GrammarSpec, text: str) -> bool:
    matcher = BACKEND.matcher(BACKEND.compile(spec))
    tokens = [*text.encode(), 256]
    return matcher.accept_prefix(tokens) == len(tokens)


ENFORCED = [
    (of("integer", minimum=5), 4, 5),
    (of("number", exclusiveMaximum=5), 5, 4.5),
    (of("integer", multipleOf=5), 4, 5),
    (of("string", minLength=3), "ab", "abc"),
    (of("string", pattern="^a+$"), "b", "aa"),
    (of("string", format="date"), "xx", "2020-01-01"),
    (of("array", items=INTEGER, maxItems=1), [1, 2], [1]),
    (of("array", prefixItems=[INTEGER], unevaluatedItems=False), [1, 2], [1]),
    (of("object", properties={"a": INTEGER}, required=["a"]), {}, {"a": 1}),
    (of("object", properties={"a": INTEGER}, additionalProperties=False), {"b": 1}, {"a": 1}),
    (of("object", additionalProperties=INTEGER, maxProperties=1), {"a": 1, "b": 2}, {"a": 1}),
    ({"properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}, {"a": ""}, {"a": 1}),
    ({"items": INTEGER}, ["a"], [1]),
    ({"type": ["string", "null"], "minLength": 3}, "ab", None),
    ({"enum": [1, 2]}, 3, 1),
    ({"type": "string", "enum": ["a", "b"]}, "c", "a"),
    ({"anyOf": [INTEGER, STRING], "title": "either"}, True, 1),
    ({"allOf": [INTEGER]}, "a", 1),
    ({"$defs": {"x": INTEGER}, "$ref": "#/$defs/x"}, "a", 1),
]
"""Schemas with a value that each forbids and one that it allows."""

DROPPED = [
    (of("array", items=INTEGER, uniqueItems=True), [1, 1], ["/uniqueItems"]),
    (of("number", multipleOf=0.5), 0.3, ["/multipleOf"]),
    (of("integer", multipleOf=1025), 7, ["/multipleOf"]),
    (of("string", format="regex"), "(", ["/format"]),
    (of("string", pattern="^a+$", maxLength=2), "aaa", ["/maxLength"]),
    (of("object", required=["z"]), {}, ["/required"]),
    (
        of("object", properties={"a": INTEGER, "b": INTEGER}, dependentRequired={"a": ["b"]}),
        {"a": 1},
        ["/dependentRequired"],
    ),
    ({"minimum": 5}, 3, ["/minimum"]),
    ({"maxItems": 1}, [1, 2], ["/maxItems"]),
    ({"oneOf": [INTEGER, NUMBER]}, 1, ["/oneOf"]),
    ({"allOf": [of("integer", minimum=2), {"maximum": 5}]}, 7, ["/allOf", "/allOf/1/maximum"]),
    ({"anyOf": [INTEGER, STRING], "minimum": 5}, 1, ["/minimum"]),
    (of("string", enum=["a", 1]), 1, ["/type"]),
    (of("string", **{"not": {"const": "a"}}), "a", ["/not"]),
    ({"$defs": {"x": INTEGER}, "$ref": "#/$defs/x", "minimum": 5}, 1, ["/minimum"]),
    (
        of("object", properties={"a": of("array", items=INTEGER, uniqueItems=True)}),
        {"a": [1, 1]},
        ["/properties/a/uniqueItems"],
    ),
    (
        {"$defs": {"x": of("string", format="iri")}, "type": "array", "items": {"$ref": "#/$defs/x"}},
        ["\\"],
        ["/$defs/x/format"],
    ),
]
"""Schemas with a value that each forbids, and what is reported."""


@pytest.mark.parametrize(("schema", "bad", "good"), ENFORCED)
def test_what_is_not_reported_is_enforced(schema: dict[str, Any], bad: object, good: object) -> None:
    assert dropped_keywords(schema) == ()
    spec = GrammarSpec.json_schema(schema)
    assert not accepts(spec, json.dumps(bad))
    assert accepts(spec, json.dumps(good))


@pytest.mark.parametrize(("schema", "bad", "reported"), DROPPED)
def test_what_is_dropped_is_reported(schema: dict[str, Any], bad: object, reported: list[str]) -> None:
    spec = GrammarSpec.json_schema(schema, allow_weakened=True)
    assert accepts(spec, json.dumps(bad))
    assert list(BACKEND.compile(spec).weakened) == reported
    with pytest.raises(WeakenedSchemaError, match=r"frontend=\"specgrammar\""):
        BACKEND.compile(GrammarSpec.json_schema(schema))


def test_annotations_and_extensions_are_no_keywords_that_could_be_dropped() -> None:
    schema = {**INTEGER, "title": "t", "description": "d", "default": 1, "x-order": 1, "examples": [1]}
    assert dropped_keywords(schema) == ()
    assert dropped_keywords({**INTEGER, "minimun": 1}) == ("/minimun",)


def rows_of(native: xgrammar.CompiledGrammar, text: str) -> list[list[int]]:
    matcher = xgrammar.GrammarMatcher(native)
    bitmask = xgrammar.allocate_token_bitmask(1, 257)
    rows = []
    for byte in text.encode():
        matcher.fill_next_token_bitmask(bitmask)
        rows.append([*bitmask[0].tolist()[:-1], int(bitmask[0, -1]) & 1])  # it sets the bits behind the last id
        assert matcher.accept_token(byte)
    return rows


@pytest.mark.parametrize(
    ("whitespace", "options", "text"),
    [
        ("flexible", {"any_whitespace": True}, '{\n"a" :[1 , 2],  "b": "x\\n"}'),
        ("spaced", {"any_whitespace": False}, '{"a": [1, 2], "b": "x"}'),
        ("compact", {"any_whitespace": False, "separators": (",", ":")}, '{"a":[1'),
    ],
)
def test_rows_are_those_of_xgrammar_alone(whitespace: Whitespace, options: dict[str, Any], text: str) -> None:
    schema = of("object", properties={"a": of("array", items=INTEGER), "b": STRING}, required=["a", "b"])
    info = xgrammar.TokenizerInfo(
        list(BYTES.tokens), xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256]
    )
    alone = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema), **options)
    matcher = BACKEND.matcher(BACKEND.compile(GrammarSpec.json_schema(schema, whitespace=whitespace)))
    bitmask = np.zeros((1, BYTES.num_words), dtype=np.int32)
    for byte, row in zip(text.encode(), rows_of(alone, text), strict=True):
        matcher.fill_bitmask(bitmask, 0)
        assert bitmask[0].tolist() == row
        assert matcher.accept(byte)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (GrammarSpec.json_object(), '{"a": [1]}', "[1]"),
        (GrammarSpec.regex("a{2,3}b|c"), "aab", "ab"),
        (GrammarSpec.grammar('root ::= "a" x\nx ::= "b" | "c" x'), "accb", "acc"),
        (GrammarSpec.grammar('start: "a" x\nx: "b" | "c" x'), "accb", "acc"),
        (GrammarSpec.choice(['say "hi"', "a\nb"]), 'say "hi"', "a"),
    ],
)
def test_every_kind_of_grammar_compiles(spec: GrammarSpec, good: str, bad: str) -> None:
    assert accepts(spec, good)
    assert not accepts(spec, bad)


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_schema", '{"type": "integer",}'),
        GrammarSpec("json_schema", '{"items": ' * 200 + "true" + "}" * 200),
        GrammarSpec("json_schema", '{"type": "array", "minItems": 2}'),
        GrammarSpec.regex("(a"),
        GrammarSpec.grammar("root ::= missing"),
    ],
)
def test_what_cannot_be_compiled_is_one_clear_error(spec: GrammarSpec) -> None:
    with pytest.raises(GrammarCompileError) as caught:
        BACKEND.compile(spec)
    assert "\n" not in str(caught.value)


def test_a_source_that_is_not_json_is_refused_before_a_trial() -> None:
    with pytest.raises(GrammarCompileError, match="not valid JSON"):
        BACKEND.may_hang(GrammarSpec("json_schema", "{"))


def test_trials_are_for_sources_that_may_hang() -> None:
    assert not BACKEND.may_hang(GrammarSpec.json_schema(of("string", maxLength=9)))
    assert BACKEND.may_hang(GrammarSpec.json_schema(of("string", pattern="a*")))
    members = {str(number): INTEGER for number in range(100)}
    assert not BACKEND.may_hang(GrammarSpec.json_schema(of("object", properties=members)))
    assert BACKEND.may_hang(GrammarSpec.json_schema(of("object", properties=members, minProperties=50)))
    assert BACKEND.may_hang(GrammarSpec.regex("(.{1,50} ){1,90}"))
    assert BACKEND.may_hang(GrammarSpec.grammar('root ::= "a"'))
    assert BACKEND.recipe()().facts == BACKEND.facts != XGrammarBackend.facts


def test_another_frontend_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"xgrammar: frontend = 'mine'; expected 'specgrammar' or 'native'"):
        XGrammarBackend(BYTES, frontend="mine")  # type: ignore[arg-type]  # on purpose
