"""Real documents with their schemas: what a constrained model writes, as token ids.

Two sources. BFCL: the arguments of real function calls (the set's own answers) under the schemas of their
functions. Nested: orders, profiles, telemetry and tickets, written by a seeded generator, with strings, enums,
arrays, numbers and optional members.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema

from benchmarks.bfcl import REQUIREMENT, load_bfcl
from benchmarks.fetch import read_package_file
from specgrammar.protocols.grammar import Vocabulary

_ANSWERS = "bfcl_eval/data/possible_answer/BFCL_v4_simple_python.json"

_TEXT = {"type": "string"}
_NAME = {"type": "string", "maxLength": 40}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 100000}
_PRICE = {"type": "number"}


def _object(optional: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _array(items: dict[str, Any], most: int = 8) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


NESTED: dict[str, dict[str, Any]] = {
    "order": _object(
        ("note",),
        id=_COUNT,
        customer=_object(name=_NAME, city=_NAME, tier={"enum": ["basic", "silver", "gold"]}),
        lines=_array(_object(item=_TEXT, quantity=_COUNT, price=_PRICE)),
        note=_TEXT,
    ),
    "profile": _object(
        ("links",),
        name=_NAME,
        bio=_TEXT,
        skills=_array(_NAME),
        history=_array(_object(role=_NAME, years=_COUNT, kind={"enum": ["full-time", "contract", "intern"]})),
        links=_array(_TEXT),
    ),
    "telemetry": _object(
        device=_NAME,
        healthy={"type": "boolean"},
        samples=_array(_object(t=_COUNT, values=_array(_PRICE), unit={"enum": ["C", "F", "K"]})),
    ),
    "ticket": _object(
        title=_TEXT,
        priority={"enum": ["low", "medium", "high", "urgent"]},
        labels=_array({"enum": ["bug", "feature", "question", "docs"]}),
        comments=_array(_object(author=_NAME, text=_TEXT, votes=_COUNT)),
    ),
}

_WORDS = [
    "the",
    "quick",
    "delivery",
    "of",
    "fresh",
    "coffee",
    "beans",
    "from",
    "northern",
    "hills",
    "was",
    "late",
    "because",
    "heavy",
    "rain",
    "closed",
    "a",
    "mountain",
    "road",
    "near",
    "Berlin",
    "and",
    "nobody",
    "answered",
    "the",
    "support",
    "line",
    "until",
    "Monday",
    "morning",
    "so",
    "we",
    "would",
    "like",
    "to",
    "change",
    "our",
    "order",
    "before",
    "the",
    "weekend",
    "please",
    "confirm",
    "by",
    "email",
    "that",
    "it",
    "can",
    "be",
    "replaced",
]


@dataclass(frozen=True)
class Document:
    """A document that satisfies its schema.

    Attributes:
        schema: JSON Schema as JSON text.
        tokens: its canonical tokenisation; the stop token follows.
    """

    schema: str
    tokens: tuple[int, ...]


def load_documents(
    vocabulary: Vocabulary, num_schemas: int = 12, per_nested: int = 6, seed: int = 0
) -> list[Document]:
    """Documents over `num_schemas` schemas: the nested ones, and real functions for the rest.

    Args:
        vocabulary: with an encoder.
        num_schemas: how many different schemas; at least 4.
        per_nested: documents for each nested schema; a function has one or two real answers.
        seed: of the generated values.

    Raises:
        RuntimeError: the package with the real answers could not be fetched.
    """
    rng = random.Random(seed)
    pairs = [(schema, _sample(schema, rng)) for schema in NESTED.values() for _ in range(per_nested)]
    calls = _function_calls()
    for schema, answers in islice(calls, num_schemas - len(NESTED)):
        pairs += [(schema, answer) for answer in answers]
    documents = []
    for schema, value in pairs:
        jsonschema.validate(value, schema)
        assert vocabulary.encode is not None
        documents.append(Document(json.dumps(schema), tuple(vocabulary.encode(json.dumps(value)))))
    return documents


def _function_calls() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Different schemas of functions with three parameters or more, one a string, and their valid answers."""
    rows = read_package_file(REQUIREMENT, _ANSWERS).decode().splitlines()
    accepted = {row["id"]: row["ground_truth"][0] for row in map(json.loads, rows)}
    seen: list[dict[str, Any]] = []
    for entry in load_bfcl():
        properties = entry.schema["properties"]
        types = [inner.get("type") for inner in properties.values()]
        if len(types) < 3 or "string" not in types or entry.schema in seen:
            continue
        seen.append(entry.schema)
        (call,) = accepted[entry.id].values()
        answers = [_pick(call, properties, choice) for choice in (0, -1)]
        valid = [a for a in answers if jsonschema.Draft202012Validator(entry.schema).is_valid(a)]
        if valid:
            yield entry.schema, valid if answers[0] != answers[1] else valid[:1]


def _pick(call: dict[str, list[Any]], properties: dict[str, Any], choice: int) -> dict[str, Any]:
    """One of the accepted values of each parameter, in the schema's order; an empty string means left out."""
    picked = {name: call[name][choice] for name in properties if name in call}
    return {name: value for name, value in picked.items() if value != ""}


def _sample(schema: dict[str, Any], rng: random.Random) -> Any:
    """A value of a nested schema."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            names = [n for n in schema["properties"] if n in schema["required"] or rng.random() < 0.5]
            return {name: _sample(schema["properties"][name], rng) for name in names}
        case "array":
            return [_sample(schema["items"], rng) for _ in range(rng.randint(1, 4))]
        case "string":
            words = rng.randint(1, 3) if "maxLength" in schema else rng.randint(3, 16)
            text = " ".join(rng.choices(_WORDS, k=words)).capitalize()
            return text[: schema.get("maxLength")]
        case "integer":
            return rng.randint(0, 10 ** rng.randint(1, 5))
        case "number":
            return round(rng.uniform(0, 500), 2)
        case _:
            return rng.random() < 0.5
