"""Generated function calls: a function with typed parameters, and a question whose words hold the values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.bfcl import to_json_schema
from examples.train_eagle.domains import DOMAINS, Domain, Parameter
from examples.train_eagle.words import NUMBERS, word

_OPENINGS = (
    "{Verb} the {object} {said}.",
    "{Verb} the {object} {said}.",
    "{Verb} {object} {said}.",
    "What is the {object} {said}?",
    "What's the {object} {said}?",
    "I need to {verb} the {object} {said}.",
    "I want to {verb} a {object} {said}.",
    "Can you {verb} the {object} {said}?",
    "Could you {verb} the {object} {said}, please?",
    "Please {verb} the {object} {said}.",
    "Help me {verb} the {object} {said}.",
    "{Said}: {verb} the {object}.",
    "I am looking for the {object} {said}. Can you help?",
    "How do I {verb} the {object} {said}?",
    "Tell me the {object} {said}.",
    "We need the {object} {said}. {Verb} it.",
    "Show me the {object} {said}",
)
_DESCRIPTIONS = (
    "{Verb} the {object} given {labels}.",
    "{Verb} the {object} based on {labels}.",
    "{Verb} {object} for the given {labels}.",
    "{Verb}s the {object}.",
    "{Verb} the {object}.",
    "{Verb} information about the {object} using {labels}.",
    "This function will {verb} the {object} from {labels}.",
    "{Verb} {object} with the specified {labels} and return the result.",
    "Returns the {object} according to {labels}.",
    "A tool to {verb} the {object}; it needs {labels}.",
)
_MORE = (
    "The {label} is taken into account.",
    "It considers the {label} if it is provided.",
    "The result depends on the {label}.",
    "Supports several options for the {label}.",
    "Useful when the {object} is needed.",
    "Returns an error if the {label} is not valid.",
    "By default, the {label} is chosen automatically.",
    "The {label} must be given in the usual format.",
)
_CONTEXTS = (
    "I am working on a school project.",
    "My friend asked me about this.",
    "We are planning for next week.",
    "I have been thinking about {labels}.",
    "I'm new to this.",
    "This is for a report.",
    "Here is a quick one.",
    "My family is visiting soon.",
    "I'm comparing a few options at the moment.",
    "Hi there!",
)


@dataclass(frozen=True)
class Function:
    """A function as a prompt names it.

    Attributes:
        name: as code writes it.
        description: a sentence.
        parameters: in the notation of function calling, see `benchmarks.bfcl.to_json_schema`.
        question: asks for one call of it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    question: str

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return to_json_schema(self.parameters)

    @property
    def prompt(self) -> str:
        """The question and the function, in the form of `benchmarks.bfcl`."""
        properties = self.parameters["properties"]
        names = ", ".join(f"{name} ({inner['type']})" for name, inner in properties.items())
        return (
            f"{self.question}\n\nCall the function {self.name}: {self.description}\n"
            f"Parameters: {names}.\nAnswer with the arguments as one JSON object only."
        )


def spoken_value(parameter: Parameter, random: Random) -> tuple[dict[str, Any], str]:
    """What a parameter accepts, and a value of it as a question says it (empty for a `bool`)."""
    match parameter.type:
        case "str":
            return {"type": "string"}, word(parameter.kind, random)
        case "int":
            return {"type": "integer"}, _number(NUMBERS[parameter.kind](random), random)
        case "float":
            return {"type": "float"}, _number(NUMBERS[parameter.kind](random), random)
        case "bool":
            return {"type": "boolean"}, ""
        case "list":
            items = list({word(parameter.kind, random): None for _ in range(random.randrange(1, 5))})
            return {"type": "array", "items": {"type": "string"}}, _listed(items, random)
        case "ints":
            numbers = [str(NUMBERS[parameter.kind](random)) for _ in range(random.randrange(2, 8))]
            item = random.choice(("integer", "integer", "float"))
            text = _listed(numbers, random)
            return {"type": "array", "items": {"type": item}}, random.choice((text, f"[{', '.join(numbers)}]"))
        case _:
            members = parameter.kind.split(",")
            described: dict[str, Any] = {"type": "string"}
            if random.random() < 0.7:  # else the choices are only described, as sloppy functions do
                described["enum"] = members
            return described, random.choice(members)


def make_function(random: Random, domain: Domain, others: tuple[Domain, ...]) -> Function:
    """A function of a domain; some take parameters of other domains, some are of none."""
    object_ = random.choice(domain.objects)
    verb = random.choice(domain.verbs)
    pool = list(domain.parameters)
    if random.random() < 0.3:
        pool = random.sample(pool, len(pool) // 2) + random.choices(
            [parameter for other in others for parameter in other.parameters], k=6
        )
    count = random.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6))
    chosen = list(
        {parameter.name: parameter for parameter in random.sample(pool, min(count, len(pool)))}.values()
    )
    num_required = random.randint(1, len(chosen))
    camel = random.random() < 0.1
    properties: dict[str, Any] = {}
    required: list[str] = []
    said: list[str] = []
    for i, parameter in enumerate(chosen):
        name = _camel(parameter.name) if camel else parameter.name
        properties[name], value = spoken_value(parameter, random)
        if i < num_required:
            required.append(name)
        if i < num_required or random.random() < 0.5:
            said.append(_say(parameter, value, random))
    if random.random() < 0.12 and len(chosen) >= 3:
        properties, required = _nested(properties, required, random)
    words = {
        "verb": verb.replace("_", " "),
        "Verb": verb.replace("_", " ").capitalize(),
        "object": object_,
        "labels": _listed([parameter.label for parameter in chosen], random),
    }
    phrase = " ".join(filter(None, said)) or "for me"
    question = random.choice(_OPENINGS).format(**words, said=phrase, Said=phrase[0].upper() + phrase[1:])
    if random.random() < 0.2:
        question = f"{random.choice(_CONTEXTS).format(**words)} {question}"
    description = random.choice(_DESCRIPTIONS).format(**words)
    if random.random() < 0.4:
        label = random.choice(chosen).label
        description = f"{description} {random.choice(_MORE).format(**words, label=label)}"
    return Function(
        _name(random, verb, object_, domain.name),
        description,
        {"type": "dict", "properties": properties, "required": required},
        question,
    )


def _say(parameter: Parameter, value: str, random: Random) -> str:
    if parameter.type == "bool":
        return parameter.phrase
    if random.random() < 0.15:
        quoted = f"'{value}'" if random.random() < 0.3 else value
        return random.choice((f"with {parameter.label} {quoted}", f"and {parameter.label} = {quoted}"))
    return parameter.phrase.format(value)


def _nested(
    properties: dict[str, Any], required: list[str], random: Random
) -> tuple[dict[str, Any], list[str]]:
    """Move the last parameters into an object of their own."""
    cut = random.randint(1, len(properties) - 2)
    outer, inner = dict(list(properties.items())[:cut]), dict(list(properties.items())[cut:])
    name = random.choice(("options", "details", "filters", "settings", "preferences", "info"))
    outer[name] = {"type": "dict", "properties": inner, "required": [n for n in inner if n in required]}
    return outer, [n for n in outer if n in required or n == name]


def _name(random: Random, verb: str, object_: str, domain: str) -> str:
    stem = object_.lower().replace(" ", "_").replace("-", "_")
    full = f"{verb}_{stem}"
    module = domain.replace(" ", "_")
    style = random.random()
    if style < 0.5:
        return full
    if style < 0.65:
        return f"{module}.{random.choice((full, stem, verb))}"
    if style < 0.75:
        return stem
    if style < 0.85:
        return _camel(full)
    if style < 0.92:
        return f"{stem}.{verb}"
    return f"{full}_{random.choice(('info', 'by_name', 'details', 'v2', 'data', 'tool'))}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _number(value: int | float, random: Random) -> str:
    if isinstance(value, int) and value >= 1000 and random.random() < 0.4:
        return f"{value:,}"
    return str(value)


def _listed(items: list[str], random: Random) -> str:
    if len(items) == 1:
        return items[0]
    joined = ", ".join(items[:-1])
    return f"{joined}{random.choice((' and ', ', ', ', and '))}{items[-1]}"


def function_prompt(random: Random, names: tuple[str, ...]) -> tuple[str, str, str]:
    """A prompt, its schema as JSON text, and its family: the domain's name."""
    name = random.choice(names)
    function = make_function(random, DOMAINS[name], tuple(DOMAINS[other] for other in names))
    return function.prompt, json.dumps(function.schema), name
