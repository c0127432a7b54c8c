"""Generated JSON tasks that are no function calls: extract a record from a text, or describe a thing."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from benchmarks.bfcl import to_json_schema
from examples.train_eagle.domains import DOMAINS, Parameter
from examples.train_eagle.functions import spoken_value

_EXTRACT = (
    "Extract the {thing} from the text as JSON.\n\n{text}\n\nFields: {fields}.",
    "{text}\n\nReturn the {thing} as one JSON object with the fields {fields}.",
    "Read the text and fill in the fields {fields} as JSON.\n\nText: {text}",
    "Here is a note: {text}\nWrite the {thing} in JSON. Keys: {fields}.",
    "Turn this into a JSON record ({fields}):\n{text}",
)
_DESCRIBE = (
    "Describe a {thing} as JSON with the fields {fields}.",
    "Make up a {thing} and answer with one JSON object. Fields: {fields}.",
    "Give an example of a {thing} as a JSON object with {fields}.",
    "Create a JSON record of a {thing}: {fields}.",
)


def json_prompt(random: Random, names: tuple[str, ...]) -> tuple[str, str, str]:
    """A prompt, its schema as JSON text, and its family: the domain's name."""
    domain = DOMAINS[random.choice(names)]
    thing = (
        f"{random.choice(domain.objects)} {random.choice(('', 'record', 'entry', 'details', 'data'))}".strip()
    )
    chosen = random.sample(domain.parameters, random.randint(2, 6))
    properties: dict[str, Any] = {}
    sentences: list[str] = []
    for parameter in chosen:
        properties[parameter.name], value = spoken_value(parameter, random)
        sentences.append(_sentence(parameter, value, random))
    fields = list(properties)
    shape = random.random()
    if shape < 0.3 and len(fields) >= 3:
        properties, fields = _grouped(properties, random)
    elif shape < 0.45:
        key = random.choice(("items", "results", "entries", "records"))
        item = {"type": "dict", "properties": properties, "required": list(properties)}
        fields = [f"{key} (list of {', '.join(properties)})"]
        properties = {key: {"type": "array", "items": item}}
    schema = to_json_schema({"type": "dict", "properties": properties, "required": list(properties)})
    _cap_items(schema, 3)
    form = random.choice(_EXTRACT if random.random() < 0.65 else _DESCRIBE)
    prompt = form.format(thing=thing, text=" ".join(sentences), fields=", ".join(fields))
    return prompt, json.dumps(schema), domain.name


def _sentence(parameter: Parameter, value: str, random: Random) -> str:
    if parameter.type == "bool":
        return f"It is {random.choice(('', 'not '))}{parameter.phrase}."
    return random.choice(
        (
            f"The {parameter.label} is {value}.",
            f"{parameter.label.capitalize()}: {value}.",
            f"It is {parameter.phrase.format(value)}.",
            f"They chose {value} as the {parameter.label}.",
        )
    )


def _grouped(properties: dict[str, Any], random: Random) -> tuple[dict[str, Any], list[str]]:
    """Move some fields into an object."""
    inner = dict(random.sample(list(properties.items()), random.randint(2, len(properties) - 1)))
    outer = {name: value for name, value in properties.items() if name not in inner}
    group = random.choice(("details", "info", "summary", "attributes", "specs"))
    outer[group] = {"type": "dict", "properties": inner, "required": list(inner)}
    return outer, [*(name for name in outer if name != group), f"{group} ({', '.join(inner)})"]


def _cap_items(schema: dict[str, Any], limit: int) -> None:
    """Lower the bound of arrays of objects, whose answers would be long."""
    for inner in schema["properties"].values():
        if inner.get("type") == "array" and inner["items"].get("type") == "object":
            inner["maxItems"] = limit
        elif inner.get("type") == "object":
            _cap_items(inner, limit)
