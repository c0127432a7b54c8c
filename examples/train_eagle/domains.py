"""What functions are about: per domain verbs, objects, and parameters with the phrase that speaks their value.

They are listed in `domains.txt`: a line `domain: verbs`, then a line of objects and one line `name type kind
phrase` per parameter. Types: `str`, `int`, `float`, `bool`, `list` (of a kind of words), `ints`, `enum` (its
kind lists the members with commas, the last one a single word). Kinds are those of `words`. The phrase of a
`bool` is said where it is true; all others speak the value at `{}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Parameter:
    """One parameter that a function may have."""

    name: str
    type: str
    kind: str
    phrase: str

    @property
    def label(self) -> str:
        """The name as words."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Domain:
    """What its functions are named after and may take."""

    name: str
    verbs: tuple[str, ...]
    objects: tuple[str, ...]
    parameters: tuple[Parameter, ...]


def _parse(text: str) -> dict[str, Domain]:
    found: dict[str, Domain] = {}
    # A block begins at each line that is not indented.
    for block in re.split(r"\n(?! )", text.strip()):
        first, objects, *parameters = block.splitlines()
        name, verbs = first.split(": ")
        found[name] = Domain(
            name,
            tuple(verbs.replace("look up", "look_up").split()),
            tuple(objects.strip().split("|")),
            tuple(_parameter(line.strip()) for line in parameters),
        )
    return found


def _parameter(line: str) -> Parameter:
    name, kind_of_value, rest = line.split(" ", 2)
    if kind_of_value == "enum":
        *members, last = rest.split(",")
        end, _, phrase = last.partition(" ")
        return Parameter(name, "enum", ",".join([*members, end]), phrase)
    kind, phrase = rest.split(" ", 1)
    return Parameter(name, kind_of_value, kind, phrase)


DOMAINS = _parse(Path(__file__).with_name("domains.txt").read_text(encoding="utf-8"))
