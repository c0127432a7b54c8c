"""JSON Schema: what is produced is valid, what is valid and in normal form is accepted, the rest is refused."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specgrammar.errors import GrammarCompileError, WeakenedSchemaError
from specgrammar.language.schema_keywords import UNENFORCED, unenforced
from specgrammar.protocols.grammar import BackendFacts, GrammarBackend, GrammarSpec, Vocabulary
from specgrammar.testing.reference import ReferenceBackend
from tests.backends.schemas import schemas, walk

BYTES = Vocabulary((*(bytes([b]) for b in range(256)), b""), (256,), frozenset([256]))
REFERENCE = ReferenceBackend(BYTES)
RELAXED = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
    ],
)


def accepts(schema: Any, text: str, **options: Any) -> bool:
    matcher = REFERENCE.matcher(REFERENCE.compile(GrammarSpec("json_schema", json.dumps(schema), **options)))
    tokens = list(text.encode())
    return matcher.accept_prefix([*tokens, 256]) == len(tokens) + 1


@RELAXED
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_every_output_is_valid_against_the_original_schema(
    native: GrammarBackend, vocabulary: Vocabulary, schema: Any, seed: int
) -> None:
    try:
        compiled = native.compile(GrammarSpec("json_schema", json.dumps(schema)))
    except GrammarCompileError:
        assume(False)
    text = walk(native.matcher(compiled), vocabulary, seed)
    assume(text is not None)
    assert text is not None
    document = json.loads(text.decode())
    jsonschema.Draft202012Validator(schema).validate(document)


OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "size": {"type": "number", "minimum": -1.5, "maximum": 1e3},
        "tags": {"type": "array", "items": {"enum": ["x", 'quo"te', "é", None, 1.5]}, "maxItems": 3},
        "sub": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "required": ["size"],
}
documents = st.fixed_dictionaries(
    {"size": st.one_of(st.integers(-1, 1000), st.decimals(-1.5, 1000, places=3).map(float))},
    optional={
        "name": st.text(max_size=5).filter(lambda text: text.isprintable() or text in '\n"\\'),
        "tags": st.lists(st.sampled_from(["x", 'quo"te', "é", None, 1.5]), max_size=3),
        "sub": st.fixed_dictionaries({"n": st.integers(-(10**18), 10**18)}),
    },
).map(lambda document: {name: document[name] for name in OBJECT["properties"] if name in document})


@RELAXED
@given(document=documents, ascii_only=st.booleans())
def test_json_dumps_is_accepted_in_its_white_space_only(document: Any, ascii_only: bool) -> None:
    spaced = json.dumps(document, ensure_ascii=ascii_only)
    compact = json.dumps(document, ensure_ascii=ascii_only, separators=(",", ":"))
    indented = json.dumps(document, ensure_ascii=ascii_only, indent=2)
    assert accepts(OBJECT, spaced)
    assert accepts(OBJECT, compact, whitespace="compact")
    assert not accepts(OBJECT, compact)
    assert not accepts(OBJECT, spaced, whitespace="compact")
    assert not accepts(OBJECT, indented)
    assert all(accepts(OBJECT, text, whitespace="flexible") for text in (spaced, compact, indented))


CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"type": ["integer", "string"], "minimum": 3, "maxLength": 2}, ["3", '"ab"'], ["2", '"abc"', "null"]),
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3", "-0", "1.0"]),
    ({"type": "integer", "multipleOf": 5, "minimum": -5, "maximum": 9}, ["-5", "0", "5"], ["7", "10"]),
    ({"type": "number", "multipleOf": 1}, ["7"], ["7.5"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.5", "1", "1.0"], ["0", "0.0", "1.01", "1e0"]),
    ({"type": "string", "minLength": 1, "maxLength": 1}, ['"\\n"', '"é"', '"\\ud83d\\ude00"'], ['""', '"ab"']),
    ({"type": "string"}, ['"\\u0041\\/"'], ['"\\ud800"', '"\\udc00"', '"\t"', '"\\x"']),
    ({"type": "string", "pattern": '^"$'}, ['"\\""'], ['"""', '"a"']),
    ({"type": "string", "pattern": "b"}, ['"abc"'], ['"a"']),
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ['"aa"'], ['"aaa"', '""']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1},
        ["[null]", "[null, 1]"],
        ["[]", "[1]"],
    ),
    ({"properties": {"a": {"type": "null"}}}, ["{}", '{"a": null}'], ['{"b": 1}', "1"]),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        ['{"a": null, "b": 1}', '{"b": 1}', '{"aa": 1}', '{"": 1}'],
        ['{"a": 1}', '{"b": 1, "a": null}', '{"a": null, "a": 1}', '{"\\u0061": 1}'],
    ),
    ({"type": "object", "properties": {}, "required": ["z"]}, ['{"z": 1}'], ["{}"]),
    ({"type": "object", "properties": {"a": False, "b": True}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ({"type": "object", "minProperties": 1, "properties": {"a": True}}, ['{"a": 1}'], ["{}"]),
    ({"enum": ["a", 1, None], "type": "string"}, ['"a"'], ["1", "null"]),
    ({"enum": [1, 5, "x"], "minimum": 3}, ["5", '"x"'], ["1"]),
    ({"const": {"b": [1, "é"], "a": {}}}, ['{"b": [1, "é"], "a": {}}'], ["{}"]),
    ({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": -3}]}, ["3", "-3"], ["0"]),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
                {"properties": {"b": {"type": "null"}}, "required": ["b"]},
            ]
        },
        ['{"a": null, "b": null}'],
        ['{"a": null}', '{"a": null, "b": null, "c": 1}'],
    ),
    (
        {
            "properties": {"a": {"type": "null"}},
            "anyOf": [{"properties": {"b": {"const": 1}}}, {"required": ["a"]}],
        },
        ['{"a": null, "b": 1}', '{"a": null}', "{}"],
        ['{"c": 1}'],
    ),
    ({"oneOf": [{"type": "null"}, {"const": 2}]}, ["null", "2"], ["1"]),
    (
        {
            "oneOf": [
                {"properties": {"k": {"const": k}}, "required": ["k"], "type": "object"} for k in ("x", "y")
            ]
        },
        ['{"k": "x"}', '{"k": "y"}'],
        ['{"k": "z"}', "{}"],
    ),
    ({"$defs": {"x/~y z": {"type": "null"}}, "$ref": "#/$defs/x~1~0y%20z"}, ["null"], ["1"]),
    ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 3}, ["3"], ["1"]),
    ({"properties": {"a": {"$ref": "#"}}}, ['{"a": {"a": {}}}'], ['{"a": 1}']),
    (
        {"properties": {"minLength": {"type": "null"}, "not": True}},
        ['{"minLength": null}'],
        ['{"minLength": 1}'],
    ),
    (
        {"title": "t", "description": "d", "default": 1, "$comment": "c", "x-y": 1, "type": "null"},
        ["null"],
        ["1"],
    ),
    ({"unevaluatedProperties": False, "allOf": [{"properties": {"a": True}}]}, ['{"a": 1}'], ['{"b": 1}']),
    (True, ["null", "[1, {}]", '{"a": [1.5e-3, "x"]}'], ["x"]),
]


@pytest.mark.parametrize("schema, good, bad", CASES, ids=lambda value: json.dumps(value)[:50])
def test_keywords(schema: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(schema, text), text
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    for text in bad:
        assert not accepts(schema, text), text


WEAKENED: list[tuple[Any, tuple[str, ...]]] = [
    ({"type": "array", "uniqueItems": True}, ("/uniqueItems",)),
    ({"properties": {"a/b": {"not": {"type": "null"}}}}, ("/properties/a~1b/not",)),
    ({"type": "array", "items": {"type": "string", "format": "regex"}}, ("/items/format",)),
    ({"type": "string", "pattern": "^(ab)+$", "maxLength": 3}, ("/maxLength",)),
    ({"type": "integer", "multipleOf": 7}, ("/multipleOf",)),
    ({"oneOf": [{"minimum": 0, "type": "integer"}, {"type": "number"}]}, ("/oneOf",)),
    ({"$ref": "http://example.com/schema"}, ("/$ref",)),
    ({"$ref": "#/$defs/none"}, ("/$ref",)),
    ({"type": "string", "minLenght": 2}, ("/minLenght",)),
    ({"if": {"type": "null"}, "then": True, "type": "null"}, ("/if", "/then")),
    ({"$defs": {"x": {"contains": True}}, "type": "null"}, ()),
    ({"$defs": {"x": {"type": "array", "contains": True}}, "$ref": "#/$defs/x"}, ("/$defs/x/contains",)),
    ({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, ("/allOf/1/pattern",)),
    ({"type": "object", "minProperties": 2, "additionalProperties": True}, ("/minProperties",)),
    ({"type": "object", "maxProperties": 1, "properties": {"a": True, "b": True}}, ("/maxProperties",)),
]


@pytest.mark.parametrize("schema, pointers", WEAKENED, ids=lambda value: json.dumps(value)[:50])
def test_what_is_not_enforced_is_refused_or_reported(
    backend: GrammarBackend, schema: Any, pointers: tuple[str, ...]
) -> None:
    text = json.dumps(schema)
    if pointers:
        with pytest.raises(WeakenedSchemaError) as caught:
            backend.compile(GrammarSpec("json_schema", text))
        assert all(pointer in str(caught.value) for pointer in pointers)
    assert backend.compile(GrammarSpec("json_schema", text, allow_weakened=True)).weakened == pointers


def test_unenforced_follows_the_facts_of_a_backend() -> None:
    facts = BackendFacts(None, True, frozenset(), frozenset(["pattern", "items"]))
    schema = {"properties": {"items": {"type": "string", "pattern": "a", "default": {"pattern": 1}}}, "not": {}}
    assert unenforced(schema, facts) == ("/properties/items/pattern",)
    assert "not" in UNENFORCED


@pytest.mark.parametrize(
    "schema, message",
    [
        ("false", "nothing satisfies"),
        ('{"enum": []}', "nothing satisfies"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "nothing satisfies"),
        ('{"type": "string", "minLength": 5, "maxLength": 3}', "nothing satisfies"),
        ('{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}', "nothing satisfies"),
        ('{"$ref": "#"}', "nothing satisfies"),
        ('{"type": "string", "const": 1}', "nothing satisfies"),
        ('{"properties": {"a": true}, "required": ["b"], "additionalProperties": false}', "nothing satisfies"),
        ('{"type": "strng"}', "/type is 'strng'; expected one of null"),
        ('{"items": {"minLength": -1}}', "/items/minLength is -1"),
        ('{"properties": []}', "/properties is \\[\\]; expected a map"),
        ('{"anyOf": []}', "/anyOf"),
        ('{"pattern": "(?=a)"}', "look-ahead"),
        ("[1]", "expected an object, true or false"),
        ("{", "not valid JSON"),
        ('{"minimum": NaN}', "NaN"),
        ('{"type": "null", "type": "string"}', "'type' appears twice"),
        ('{"const": "\\ud800"}', "lone surrogate"),
        ('{"allOf": [{"$ref": "#"}], "minimum": 1}', "refers to itself"),
    ],
)
def test_broken_and_impossible_schemas(backend: GrammarBackend, schema: str, message: str) -> None:
    with pytest.raises(GrammarCompileError, match=message) as caught:
        backend.compile(GrammarSpec("json_schema", schema))
    assert "\n" not in str(caught.value)
