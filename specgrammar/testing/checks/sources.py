"""Sources whose meaning nobody doubts: broken ones of each kind, and schemas with what they forbid."""

from __future__ import annotations

from typing import Any, NamedTuple

from specgrammar.protocols.grammar import BackendFacts, GrammarSpec

_BROKEN = (
    GrammarSpec.json_schema(""),
    GrammarSpec.json_schema("{"),
    GrammarSpec.json_schema('{"type": "string"} x'),
    GrammarSpec.json_schema("[1]"),
    GrammarSpec.json_schema("null"),
    GrammarSpec.json_schema({"type": "strin"}),
    GrammarSpec.json_schema({"minLength": "a"}),
    GrammarSpec.json_schema({"properties": []}),
    GrammarSpec.json_schema({"type": "string", "pattern": "("}),
    *map(GrammarSpec.regex, ("(", "a)", "[a", "*a", "a{2,1}", "\\")),
    *(GrammarSpec("choice", text) for text in ("", "a, b", '["a"', '"a"', '{"a": 1}', "[1]", "[]")),
    GrammarSpec.grammar(""),
)
_BROKEN_TEXTS = {
    "ebnf": ('root ::= "a', "root ::= other", 'other ::= "a"', 'root ::= ("a"', 'root ::= "a" )'),
    "lark": ('start: "a', "start: other", 'other: "a"', 'start: ("a"', "start: /(/"),
}
"""A text, a reference, a start rule, a bracket: what is missing or not closed, in each syntax."""
_WHOLE_TEXTS = {"ebnf": 'root ::= "a"', "lark": 'start: "a"'}


def broken_specs(facts: BackendFacts) -> tuple[GrammarSpec, ...]:
    """What no backend can compile, of the kinds and syntaxes that it says it compiles."""
    specs = [spec for spec in _BROKEN if spec.kind in facts.kinds]
    for syntax in sorted(facts.grammar_syntaxes & set(_BROKEN_TEXTS)):
        specs += map(GrammarSpec.grammar, _BROKEN_TEXTS[syntax])
    return tuple(specs)


def undeclared_specs(facts: BackendFacts) -> tuple[GrammarSpec, ...]:
    """Grammars in good order, of each kind and syntax that a backend does not say it compiles."""
    texts = {syntax: GrammarSpec.grammar(text) for syntax, text in _WHOLE_TEXTS.items()}
    others = [spec for syntax, spec in texts.items() if syntax not in facts.grammar_syntaxes]
    kinds = [
        GrammarSpec.choice(["a"]),
        GrammarSpec.regex("a"),
        GrammarSpec.json_schema({"enum": [1]}),
        GrammarSpec.json_object(),
        texts["ebnf"],
    ]
    return tuple(dict.fromkeys([spec for spec in kinds if spec.kind not in facts.kinds] + others))


class Keyword(NamedTuple):
    """A JSON Schema about one keyword, a text that satisfies it, and one that only the keyword forbids."""

    name: str
    schema: dict[str, Any]
    good: str
    bad: str


def _object(**keywords: Any) -> dict[str, Any]:
    """An object that may have the names a and b, and nothing more."""
    digit = {"enum": [1, 2]}
    properties = {"type": "object", "properties": {"a": digit, "b": digit}, "additionalProperties": False}
    return {**properties, **keywords}


def _array(**keywords: Any) -> dict[str, Any]:
    """An array of digits."""
    return {"type": "array", "items": {"enum": [1, 2]}, **keywords}


_ONE_OR_TWO = {"enum": [1, 2]}
_A_IS_1, _A_IS_2 = '{"a": 1}', '{"a": 2}'

KEYWORDS = (
    Keyword("type", {"type": "integer"}, "1", "true"),
    Keyword("enum", {"enum": [1, "a"]}, '"a"', "2"),
    Keyword("const", {"const": 1}, "1", "2"),
    Keyword("anyOf", {"anyOf": [{"const": 1}, {"const": 2}]}, "2", "3"),
    Keyword("oneOf", {"oneOf": [{"const": 1}, {"const": 2}]}, "2", "3"),
    Keyword("allOf", {"allOf": [{"type": "integer"}, {"enum": [1, "a"]}]}, "1", '"a"'),
    Keyword("$ref", {"$ref": "#/$defs/one", "$defs": {"one": {"const": 1}}}, "1", "2"),
    Keyword("not", {**_ONE_OR_TWO, "not": {"const": 2}}, "1", "2"),
    Keyword("if", {**_ONE_OR_TWO, "if": {"const": 2}, "then": False}, "1", "2"),
    Keyword("then", {**_ONE_OR_TWO, "if": True, "then": {"const": 1}}, "1", "2"),
    Keyword("else", {**_ONE_OR_TWO, "if": False, "else": {"const": 1}}, "1", "2"),
    Keyword("minimum", {"type": "integer", "minimum": 5}, "5", "4"),
    Keyword("maximum", {"type": "integer", "maximum": 5}, "5", "6"),
    Keyword("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 5}, "6", "5"),
    Keyword("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 5}, "4", "5"),
    Keyword("multipleOf", {"type": "integer", "multipleOf": 5}, "15", "16"),
    Keyword("minLength", {"type": "string", "minLength": 2}, '"ab"', '"a"'),
    Keyword("maxLength", {"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    Keyword("pattern", {"type": "string", "pattern": "^a+$"}, '"aa"', '"ab"'),
    Keyword("format", {"type": "string", "format": "date"}, '"2024-02-29"', '"a"'),
    Keyword("items", _array(), "[1]", "[3]"),
    Keyword("prefixItems", {"type": "array", "prefixItems": [{"const": 1}], "items": False}, "[1]", "[2]"),
    Keyword("minItems", _array(minItems=2), "[1, 2]", "[1]"),
    Keyword("maxItems", _array(maxItems=1), "[1]", "[1, 2]"),
    Keyword("uniqueItems", _array(uniqueItems=True), "[1, 2]", "[1, 1]"),
    Keyword("contains", _array(contains={"const": 1}), "[2, 1]", "[2]"),
    Keyword("minContains", _array(contains={"const": 1}, minContains=2), "[1, 1]", "[1]"),
    Keyword("maxContains", _array(contains={"const": 1}, maxContains=1), "[1]", "[1, 1]"),
    Keyword("properties", _object(), _A_IS_1, '{"a": 3}'),
    Keyword("required", _object(required=["a"]), _A_IS_1, "{}"),
    Keyword("additionalProperties", _object(), _A_IS_1, '{"c": 1}'),
    Keyword("minProperties", _object(minProperties=1), _A_IS_1, "{}"),
    Keyword("maxProperties", _object(maxProperties=1), _A_IS_1, '{"a": 1, "b": 1}'),
    Keyword("patternProperties", _object(patternProperties={"^a": {"const": 1}}), _A_IS_1, _A_IS_2),
    Keyword("propertyNames", _object(propertyNames={"const": "b"}), '{"b": 1}', _A_IS_1),
    Keyword("dependentRequired", _object(dependentRequired={"a": ["b"]}), '{"a": 1, "b": 1}', _A_IS_1),
    Keyword("dependentSchemas", _object(dependentSchemas={"a": False}), '{"b": 1}', _A_IS_1),
    Keyword("dependencies", _object(dependencies={"a": ["b"]}), '{"a": 1, "b": 1}', _A_IS_1),
    Keyword("unevaluatedProperties", _object(unevaluatedProperties=False), _A_IS_1, '{"c": 1}'),
)
"""Separators are `spaced`, and members of objects in the order in which they are declared."""
