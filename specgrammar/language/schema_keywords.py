"""The keywords of JSON Schema (2020-12): where subschemas are, what values may be, what is enforced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import unquote

from specgrammar.errors import GrammarCompileError
from specgrammar.language.source import MAX_NESTING
from specgrammar.protocols.grammar import BackendFacts

Schema: TypeAlias = dict[str, Any] | bool


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ANNOTATIONS = words(
    "title description default examples deprecated readOnly writeOnly $comment $schema $vocabulary $anchor "
    "$id $defs definitions contentEncoding contentMediaType contentSchema"
)
"""They restrict nothing."""

KEYWORDS_OF_TYPE = {
    "number": words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
    "string": words("minLength maxLength pattern format"),
    "array": words(
        "items prefixItems minItems maxItems uniqueItems contains minContains maxContains "
        "unevaluatedItems additionalItems"
    ),
    "object": words(
        "properties required additionalProperties minProperties maxProperties patternProperties propertyNames "
        "dependentRequired dependentSchemas dependencies unevaluatedProperties"
    ),
}
APPLICATORS = words("type enum const anyOf oneOf allOf $ref not if then else $dynamicRef $recursiveRef")
KNOWN: frozenset[str] = ANNOTATIONS.union(APPLICATORS, *KEYWORDS_OF_TYPE.values())
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

UNENFORCED = words(
    "contains minContains maxContains additionalItems patternProperties propertyNames dependentRequired "
    "dependentSchemas dependencies not if then else $dynamicRef $recursiveRef"
)
"""Keywords that `language.schema` does not compile, whatever their value."""

_ONE = words("items additionalProperties unevaluatedItems unevaluatedProperties") | words(
    "contains additionalItems propertyNames not if then else"
)
_LIST = words("anyOf oneOf allOf prefixItems")
_MAP = words("properties patternProperties dependentSchemas $defs definitions")


def is_number(value: object) -> bool:
    """A JSON number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return is_number(value) and value == int(value) and value >= 0  # type: ignore[operator,call-overload]  # narrowed


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(name in TYPES for name in names)


_Check: TypeAlias = tuple[Callable[[object], bool], str]
_CHECKS: dict[str, _Check] = {
    "type": (_is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_is_names, "a list of names"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),  # type: ignore[operator]
    **dict.fromkeys(_ONE, (_is_schema, "a schema (an object, true or false)")),
    **dict.fromkeys(
        _LIST,
        (
            lambda value: isinstance(value, list) and bool(value) and all(map(_is_schema, value)),
            "a list of schemas",
        ),
    ),
    **dict.fromkeys(
        _MAP,
        (lambda value: isinstance(value, dict) and all(map(_is_schema, value.values())), "a map of schemas"),
    ),
    **dict.fromkeys(words("minimum maximum exclusiveMinimum exclusiveMaximum"), (is_number, "a number")),
    **dict.fromkeys(
        words("minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains"),
        (_is_count, "a whole number of at least 0"),
    ),
    **dict.fromkeys(words("pattern format $ref $id"), (lambda value: isinstance(value, str), "a string")),
}


def pointer(*parts: str | int) -> str:
    """A JSON pointer from its unescaped parts."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def subschemas(schema: dict[str, Any], *, definitions: bool) -> Iterator[tuple[str, Schema]]:
    """The schemas directly inside a schema, with their relative pointers."""
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield pointer(keyword), value
        elif keyword in _LIST:
            for i, item in enumerate(value):
                yield pointer(keyword, i), item
        elif keyword in _MAP and (definitions or keyword not in ("$defs", "definitions")):
            for name, item in value.items():
                yield pointer(keyword, name), item


def check_schema(schema: Any) -> None:
    """Raise GrammarCompileError for what is no JSON Schema: wrong values, nesting beyond MAX_NESTING."""
    check_nesting(schema)
    if not _is_schema(schema):
        raise GrammarCompileError("json_schema: expected an object, true or false at the top")
    pending: list[tuple[str, Schema]] = [("", schema)]
    while pending:
        where, current = pending.pop()
        if isinstance(current, bool):
            continue
        for keyword, value in current.items():
            good, expected = _CHECKS.get(keyword, (None, ""))
            if good is not None and not good(value):
                shown = repr(value)[:60]
                raise GrammarCompileError(
                    f"json_schema: {where}{pointer(keyword)} is {shown}; expected {expected}"
                )
        pending += [(where + inner, item) for inner, item in subschemas(current, definitions=True)]


def check_nesting(value: Any) -> None:
    """Raise GrammarCompileError if JSON is nested deeper than MAX_NESTING, or holds a lone surrogate."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        texts = [item for item in level if isinstance(item, str)]
        texts += [name for item in level if isinstance(item, dict) for name in item]
        for text in texts:
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise GrammarCompileError(f"json_schema: a lone surrogate in the string {ascii(text)[:60]}")
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise GrammarCompileError(
        f"json_schema: nested more than {MAX_NESTING} deep; name parts with $defs and $ref"
    )


def resolve(root: Schema, ref: str) -> Schema | None:
    """The schema that a local `$ref` (`#` or `#/...`) points to; None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    current: Any = root
    for part in unquote(ref[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(current, list) and name.isdecimal() and int(name) < len(current):
            current = current[int(name)]
        elif isinstance(current, dict) and name in current:
            current = current[name]
        else:
            return None
    return current if _is_schema(current) else None


def reachable(schema: Schema) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Every subschema that is no boolean and can be reached, also by reference, with its JSON pointer.

    A reference that cannot be resolved inside the schema comes as its own pointer and None.
    """
    pending: list[tuple[str, Schema]] = [("", schema)]
    followed: set[str] = set()
    while pending:
        where, current = pending.pop()
        if isinstance(current, bool):
            continue
        yield where, current
        ref = current.get("$ref")
        if ref is not None and ref not in followed:
            followed.add(ref)
            target = resolve(schema, ref)
            if target is None:
                yield f"{where}/$ref", None
            else:
                pending.append((ref[1:], target))
        pending += [(where + inner, item) for inner, item in subschemas(current, definitions=False)]


def unenforced(schema: Schema, facts: BackendFacts) -> tuple[str, ...]:
    """Pointers of the keywords that a backend would drop, at every subschema that can be reached.

    These are `facts.unenforced_keywords`, keywords that JSON Schema does not know (but for names that begin
    with `x-`), and references that cannot be resolved inside the schema.
    """
    found: list[str] = []
    for where, current in reachable(schema):
        if current is None:
            found.append(where)
            continue
        for keyword in current:
            unknown = keyword not in KNOWN and not keyword.startswith("x-")
            if unknown or keyword in facts.unenforced_keywords or (keyword == "$id" and where):
                found.append(where + pointer(keyword))
    return tuple(sorted(set(found)))
