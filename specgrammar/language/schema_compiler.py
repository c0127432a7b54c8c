"""The compiler behind `language.schema`: subschemas to nodes, references to rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specgrammar.errors import GrammarCompileError
from specgrammar.language.json_text import FALSE, LAYOUTS, NULL, TRUE, constant, key_other_than, string
from specgrammar.language.ranges import NUMBER
from specgrammar.language.regex import Lexeme, Node, Ref
from specgrammar.language.rules import Grammar, alt, make_grammar, seq
from specgrammar.language.schema_containers import Member, any_members, array_node, object_node
from specgrammar.language.schema_keywords import (
    ANNOTATIONS,
    KEYWORDS_OF_TYPE,
    Schema,
    pointer,
    resolve,
)
from specgrammar.language.schema_merge import merge, types_of
from specgrammar.language.schema_numbers import number_node
from specgrammar.language.schema_strings import string_node
from specgrammar.language.schema_values import admits, disjoint
from specgrammar.protocols.grammar import Whitespace

MAX_SUBSCHEMAS = 20_000
"""Most subschemas that are compiled, those that merging makes included."""
MAX_INLINE_DEPTH = 64

_VALUES = ("null", "boolean", "number", "string", "array", "object")


class SchemaCompiler:
    """Compiles one schema.

    Attributes:
        weakened: pointers of what is not enforced; keywords that are in it before `compile` are left out.
    """

    def __init__(self, root: Schema, whitespace: Whitespace) -> None:
        self._root = root
        self._layout = LAYOUTS[whitespace]
        self._rules: dict[str, Node | None] = {}
        self._named: dict[Node, Ref] = {}
        self._references: dict[str, Ref] = {}
        self._pending: list[tuple[str, Ref]] = []
        self._num_subschemas = 0
        self._depth = 0
        self.weakened: dict[str, None] = {}

    def compile(self) -> Grammar | None:
        """The rules for the whole schema; None if nothing satisfies it. `weakened` is complete then."""
        self._rules["start"] = self._value(self._root, "")
        while self._pending:
            ref, rule = self._pending.pop()
            target = resolve(self._root, ref)
            self._rules[rule.name] = self._value(True if target is None else target, ref[1:])
        return make_grammar(self._rules, "start")

    def _report(self, where: str) -> None:
        self.weakened[where] = None

    def _name(self, node: Node) -> Node:
        """The rule for a node; equal nodes share one."""
        if isinstance(node, Ref):
            return node
        if node not in self._named:
            self._named[node] = Ref(f"r{len(self._named)}")
            self._rules[self._named[node].name] = node
        return self._named[node]

    def _reference(self, ref: str) -> Ref:
        if ref not in self._references:
            self._references[ref] = Ref(f"ref{len(self._references)}")
            self._pending.append((ref, self._references[ref]))
        return self._references[ref]

    def _value(self, schema: Schema, where: str) -> Node | None:
        """What a schema allows; None for nothing."""
        self._num_subschemas += 1
        if self._num_subschemas > MAX_SUBSCHEMAS:
            raise GrammarCompileError(f"json_schema: more than {MAX_SUBSCHEMAS} subschemas; simplify it")
        with self._deeper(where):
            return self._one_value(schema, where)

    @contextmanager
    def _deeper(self, where: str) -> Iterator[None]:
        if self._depth >= MAX_INLINE_DEPTH:
            raise GrammarCompileError(f"json_schema: {where}: a $ref with keywords beside it refers to itself")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _one_value(self, schema: Schema, where: str) -> Node | None:
        if isinstance(schema, bool):
            return self._any() if schema else None
        if "$ref" in schema and not schema.keys() - ANNOTATIONS - {"$ref"}:
            return self._reference(schema["$ref"])
        flat, groups = self._flatten(schema, where)
        if isinstance(flat, bool):
            return None
        if not groups:
            return self._leaf(flat, where)
        (keyword, branches), rest = groups[0], groups[1:]
        nodes = []
        for i, branch in enumerate(branches):
            inner = where + pointer(keyword, i)
            if flat and isinstance(branch, dict):
                branch = self._evaluated(branch, False, inner)
            whole = merge(flat, branch, inner, self._report) if flat else branch
            if rest and isinstance(whole, dict):
                whole = {**whole, "allOf": [*whole.get("allOf", ()), *({key: value} for key, value in rest)]}
            nodes.append(self._value(whole, inner))
        return alt(*nodes)

    def _flatten(self, schema: dict[str, Any], where: str) -> tuple[Schema, list[tuple[str, list[Schema]]]]:
        """The keywords for the value itself, `allOf` and `$ref` merged in, and the groups of alternatives."""
        flat: Schema = {
            keyword: value
            for keyword, value in schema.items()
            if keyword not in ANNOTATIONS
            and keyword not in ("allOf", "anyOf", "oneOf", "$ref", "const")
            and where + pointer(keyword) not in self.weakened
        }
        groups: list[tuple[str, list[Schema]]] = []
        if "const" in schema:
            flat = merge(flat, {"enum": [schema["const"]]}, where, self._report)
        parts = [(where + pointer("allOf", i), part) for i, part in enumerate(schema.get("allOf", ()))]
        if "$ref" in schema and f"{where}/$ref" not in self.weakened:
            parts.append((schema["$ref"][1:], resolve(self._root, schema["$ref"]) or False))
        for inner, part in parts:
            if isinstance(part, bool):
                flat = flat if part else False
                continue
            self._depth += 1
            if self._depth > MAX_INLINE_DEPTH:
                raise GrammarCompileError(
                    f"json_schema: {where}: a $ref with keywords beside it refers to itself"
                )
            part_flat, part_groups = self._flatten(part, inner)
            self._depth -= 1
            part_flat = self._evaluated(part_flat, bool(part_groups), inner)
            flat = merge(flat, part_flat, inner, self._report)
            groups += part_groups
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                groups.append((keyword, schema[keyword]))
        if "oneOf" in schema and not self._exclusive(schema["oneOf"], where):
            self._report(f"{where}/oneOf")
        return flat, groups

    def _evaluated(self, flat: Schema, grouped: bool, where: str) -> Schema:
        """Turn `unevaluated...: false` into what it means before the schema is merged with others."""
        if isinstance(flat, bool):
            return flat
        for keyword, means in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if flat.get(keyword, True) is True:
                continue
            if grouped or flat[keyword] is not False:
                self._report(where + pointer(keyword))
            flat = {means: False} | {key: value for key, value in flat.items() if key != keyword}
        return flat

    def _exclusive(self, branches: list[Schema], where: str) -> bool:
        """Whether no value can satisfy two branches."""
        flats: list[Schema] = []
        for i, branch in enumerate(branches):
            flat = branch
            if isinstance(branch, dict):
                flat, groups = self._flatten(branch, where + pointer("oneOf", i))
                if groups and not flat:
                    return False
            flats.append(flat)
        return all(disjoint(a, b) for i, a in enumerate(flats) for b in flats[i + 1 :])

    def _leaf(self, schema: dict[str, Any], where: str) -> Node | None:
        types = types_of(schema)
        if "enum" in schema:
            values = [value for value in schema["enum"] if admits(value, schema, where, self._report)]
            return alt(*(constant(value, self._layout) for value in values))
        if types is None:
            implied = [name for name, keywords in KEYWORDS_OF_TYPE.items() if keywords & schema.keys()]
            if not implied:
                return self._any()
            types = frozenset(implied)
        return alt(*(self._typed(name, schema, where) for name in (*_VALUES, "integer") if name in types))

    def _typed(self, name: str, schema: dict[str, Any], where: str) -> Node | None:
        node: Node | None
        match name:
            case "null":
                return NULL
            case "boolean":
                return alt(TRUE, FALSE)
            case "integer" | "number":
                number = number_node(schema, where, self._report, integer=name == "integer")
                node = None if number is None else Lexeme(number)
            case "string":
                node = string_node(schema, where, self._report)
            case "array":
                node = self._array(schema, where)
            case _:
                node = self._object(schema, where)
        return None if node is None else self._name(node)

    def _any(self) -> Node:
        if "any" not in self._rules:
            value, layout = Ref("any"), self._layout
            text = self._name(string())
            member = seq(text, layout.key, value)
            self._rules["any"] = None  # the parts below refer to it
            self._rules["any"] = alt(
                NULL,
                TRUE,
                FALSE,
                self._name(Lexeme(NUMBER)),
                text,
                array_node((), value, 0, None, layout),
                any_members(member, 0, None, layout),
            )
        return Ref("any")

    def _array(self, schema: dict[str, Any], where: str) -> Node | None:
        rest: Schema = schema.get("items", True)
        if schema.get("unevaluatedItems", True) is not True and "items" not in schema:
            if schema["unevaluatedItems"] is False:
                rest = False
            else:
                self._report(f"{where}/unevaluatedItems")
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if schema.get("uniqueItems") and (most is None or most > 1):
            self._report(f"{where}/uniqueItems")
        prefix = [
            self._value(item, where + pointer("prefixItems", i))
            for i, item in enumerate(schema.get("prefixItems", ()))
        ]
        items = None if most == 0 else self._value(rest, where + pointer("items"))
        return array_node(prefix, items, least, None if most is None else int(most), self._layout)

    def _object(self, schema: dict[str, Any], where: str) -> Node | None:
        declared: dict[str, Schema] = dict(schema.get("properties", {}))
        required = schema.get("required", ())
        rest: Schema = schema.get("additionalProperties", True)
        for name in required:
            declared.setdefault(name, rest)
        if "additionalProperties" not in schema:
            if schema.get("unevaluatedProperties", True) not in (True, False):
                self._report(f"{where}/unevaluatedProperties")
            if "properties" in schema or schema.get("unevaluatedProperties") is False:
                rest = False
        members = []
        for name, inner in declared.items():
            value = self._value(inner, where + pointer("properties", name))
            if value is not None:
                key = constant(name, self._layout)
                members.append(Member(seq(key, self._layout.key, value), name in required))
            elif name in required:
                return None
        more = self._value(rest, where + pointer("additionalProperties"))
        extra = None if more is None else seq(key_other_than(list(declared)), self._layout.key, more)
        least, most = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        num_required = sum(member.required for member in members)
        if least > max(num_required, 1):  # the same further name may come twice, and counts once
            self._report(f"{where}/minProperties")
        if not members and extra is not None:
            return any_members(extra, least, None if most is None else int(most), self._layout)
        if most is not None and (extra is not None or most < len(members)):
            self._report(f"{where}/maxProperties")
        return object_node(members, extra, least == 0, self._layout, self._name)
