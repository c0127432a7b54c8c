"""What xgrammar 0.2.8's own converter drops of a JSON Schema, in silence or with a line on standard error.

Each rule was found by compiling a schema and offering a value that it forbids. Where a rule cannot be sure it
reports the keyword: a report too many is a line in a log, one too few is invalid output that nobody expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specgrammar.language.schema_keywords import (
    ANNOTATIONS,
    KEYWORDS_OF_TYPE,
    KNOWN,
    Schema,
    pointer,
    reachable,
    words,
)

NEVER_ENFORCED = words(
    "uniqueItems contains minContains maxContains additionalItems patternProperties propertyNames "
    "dependentRequired dependentSchemas dependencies not if then else $dynamicRef $recursiveRef"
)
"""Whatever their value. (`patternProperties` and `propertyNames` are in some schemas and not in others.)"""

_FORMATS = words(
    "email date time date-time duration ipv4 ipv6 hostname uuid uri uri-reference uri-template json-pointer "
    "relative-json-pointer"
)
_REPLACES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The first of them that a schema has is all that is read of it."""
_IMPLIES = {
    "object": words("properties additionalProperties unevaluatedProperties"),
    "array": words("items prefixItems unevaluatedItems"),
}
"""Keywords that stand for a `type` that is not given. All others are dropped without one."""


def dropped_keywords(schema: Schema) -> tuple[str, ...]:
    """JSON pointers of the keywords that are not enforced, at every subschema that can be reached, sorted.

    Args:
        schema: has passed `check_schema`.
    """
    found: set[str] = set()
    for where, current in reachable(schema):
        if current is None:
            found.add(where)
        else:
            found.update(where + pointer(keyword) for keyword in _dropped_here(current))
    return tuple(sorted(found))


def _dropped_here(schema: dict[str, Any]) -> Iterator[str]:
    """The keywords of one schema, its subschemas left out, that are not enforced."""
    reader = next((keyword for keyword in _REPLACES if keyword in schema), None)
    for keyword, value in schema.items():
        known = keyword in KNOWN or keyword.startswith("x-")
        if keyword in ANNOTATIONS or keyword.startswith("x-") or keyword == reader:
            dropped = keyword in ("allOf", "oneOf") and len(value) > 1
        elif not known or keyword in NEVER_ENFORCED:
            dropped = not (keyword == "uniqueItems" and value is False)
        elif reader in ("const", "enum") and keyword == "type":
            dropped = not _all_of_type(value, schema[reader] if reader == "enum" else [schema[reader]])
        else:
            dropped = reader is not None or not _is_read(keyword, value, schema)
        if dropped:
            yield keyword


def _is_read(keyword: str, value: Any, schema: dict[str, Any]) -> bool:
    """Whether a known keyword of a schema that only says `type` and keywords of types is enforced."""
    kinds = [kind for kind, keywords in KEYWORDS_OF_TYPE.items() if keyword in keywords]
    if "type" not in schema and not any(_IMPLIES.get(kind, frozenset()) & set(schema) for kind in kinds):
        return not kinds
    match keyword:
        case "multipleOf":
            return schema.get("type") == "integer" and value in range(1, 1025)
        case "format":
            return value in _FORMATS
        case "minLength" | "maxLength":
            return "pattern" not in schema and "format" not in schema
        case "required":
            return set(value) <= set(schema.get("properties", ()))
    return True


_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def _all_of_type(names: str | list[str], values: list[Any]) -> bool:
    """Whether each value is of one of the types."""
    kinds = [_TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    return all(
        any(isinstance(value, kind) and (bool in kind or not isinstance(value, bool)) for kind in kinds)
        for value in values
    )
