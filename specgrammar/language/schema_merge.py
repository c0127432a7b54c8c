"""`allOf`, and keywords beside `$ref` and `anyOf`: several schemas for one value made into one.

Everything is merged before an object without `additionalProperties` is closed, so that closing never makes
a composition unsatisfiable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from specgrammar.language.schema_keywords import Schema, is_number, pointer, words

Report = Callable[[str], None]
"""Takes the pointer of a keyword that will not be enforced."""

_LARGER = words("minimum exclusiveMinimum minLength minItems minProperties")
_SMALLER = words("maximum exclusiveMaximum maxLength maxItems maxProperties")


def same(a: Any, b: Any) -> bool:
    """JSON equality: 1 and 1.0 are equal, 1 and true are not."""
    if is_number(a) and is_number(b):
        return bool(a == b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    return json.dumps(a) == json.dumps(b)


def types_of(schema: dict[str, Any]) -> frozenset[str] | None:
    """The types that `type` allows, `number` without `integer` beside it; None if it does not say."""
    named = schema.get("type")
    if named is None:
        return None
    types = frozenset([named] if isinstance(named, str) else named)
    return types - {"integer"} if "number" in types else types


def common_types(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    """The types in both; an integer is a number."""
    both = a & b
    if ("integer" in a and "number" in b) or ("number" in a and "integer" in b):
        both |= {"integer"}
    return both


def merge(a: Schema, b: Schema, where: str, report: Report) -> Schema:
    """A schema for what both allow. `where` is the pointer of `b`; what cannot be merged is reported."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    merged = {**a, **{keyword: value for keyword, value in b.items() if keyword not in a}}
    for keyword in a.keys() & b.keys():
        both = _both(keyword, a[keyword], b[keyword], where, report)
        if both is None:
            report(where + pointer(keyword))
        else:
            merged[keyword] = both
    if merged.get("type") == []:
        return False
    if "properties" in a or "properties" in b:
        merged["properties"] = _properties(a, b, where, report)
    if "prefixItems" in a or "prefixItems" in b:
        merged["prefixItems"] = _prefix_items(a, b, where, report)
    return merged


def _both(keyword: str, a: Any, b: Any, where: str, report: Report) -> Any:
    """What both values of one keyword ask for; None if that cannot be said in one value."""
    if keyword in _LARGER:
        return max(a, b)
    if keyword in _SMALLER:
        return min(a, b)
    match keyword:
        case "type":
            first, second = types_of({"type": a}), types_of({"type": b})
            return sorted(common_types(first or frozenset(), second or frozenset()))
        case "enum":
            return [value for value in a if any(same(value, other) for other in b)]
        case "required":
            return list(dict.fromkeys([*a, *b]))
        case "uniqueItems":
            return a or b
        case "additionalProperties" | "items":
            return merge(a, b, where + pointer(keyword), report)
        case "properties" | "prefixItems":
            return a  # merged with the other's additionalProperties or items in mind, by the caller
        case _:
            return a if same(a, b) else None


def _properties(a: dict[str, Any], b: dict[str, Any], where: str, report: Report) -> dict[str, Schema]:
    ours, theirs = a.get("properties", {}), b.get("properties", {})
    merged: dict[str, Schema] = {}
    for name in {**ours, **theirs}:
        mine = ours[name] if name in ours else a.get("additionalProperties", True)
        other = theirs[name] if name in theirs else b.get("additionalProperties", True)
        merged[name] = merge(mine, other, where + pointer("properties", name), report)
    return merged


def _prefix_items(a: dict[str, Any], b: dict[str, Any], where: str, report: Report) -> list[Schema]:
    ours, theirs = a.get("prefixItems", []), b.get("prefixItems", [])
    return [
        merge(
            ours[i] if i < len(ours) else a.get("items", True),
            theirs[i] if i < len(theirs) else b.get("items", True),
            where + pointer("prefixItems", i),
            report,
        )
        for i in range(max(len(ours), len(theirs)))
    ]
