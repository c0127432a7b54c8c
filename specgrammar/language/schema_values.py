"""Which constants of an `enum` a schema allows, and whether two schemas exclude each other."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from specgrammar.language.schema_keywords import KEYWORDS_OF_TYPE, Schema, is_number, pointer, words
from specgrammar.language.schema_merge import Report, common_types, same, types_of

_SIMPLE = words(
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems "
    "minProperties maxProperties"
)


def type_of(value: Any) -> str:
    """The type of a JSON value; `integer` where it is whole."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if is_number(value):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def admits(value: Any, schema: dict[str, Any], where: str, report: Report) -> bool:
    """Whether a constant satisfies the keywords beside its `enum`; those that cannot be told are reported."""
    name = type_of(value)
    types = types_of(schema)
    if types is not None and name not in types and not (name == "integer" and "number" in types):
        return False
    relevant = KEYWORDS_OF_TYPE.get("number" if name == "integer" else name, frozenset()) & schema.keys()
    for keyword in relevant - _SIMPLE:
        report(where + pointer(keyword))
    return all(_holds(keyword, schema[keyword], value) for keyword in relevant & _SIMPLE)


def _holds(keyword: str, bound: Any, value: Any) -> bool:
    size = Decimal(str(value)) if is_number(value) else Decimal(len(value))
    limit = Decimal(str(bound))
    match keyword:
        case "exclusiveMinimum":
            return size > limit
        case "exclusiveMaximum":
            return size < limit
        case "multipleOf":
            return size % limit == 0
        case _:
            return size >= limit if keyword.startswith("min") else size <= limit


def disjoint(a: Schema, b: Schema) -> bool:
    """Whether certainly no value satisfies both: by their types, constants, or a member that both require."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    if kinds_a is not None and kinds_b is not None and not common_types(kinds_a, kinds_b):
        return True
    if "enum" in a and "enum" in b:
        return not any(same(value, other) for value in a["enum"] for other in b["enum"])
    if kinds_a != frozenset(["object"]) or kinds_b != frozenset(["object"]):
        return False
    both = set(a.get("required", ())) & set(b.get("required", ()))
    tags = [name for name in both if name in a.get("properties", {}) and name in b.get("properties", {})]
    return any(disjoint(_plain(a["properties"][name]), _plain(b["properties"][name])) for name in tags)


def _kinds(schema: dict[str, Any]) -> frozenset[str] | None:
    if "enum" in schema:
        return frozenset(map(type_of, schema["enum"]))
    return types_of(schema)


def _plain(schema: Schema) -> Schema:
    """A member's schema with `const` as `enum`."""
    if isinstance(schema, dict) and "const" in schema:
        return {**schema, "enum": [schema["const"]]}
    return schema
