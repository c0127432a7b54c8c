"""JSON Schema, prepared once for every backend (work in progress)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specgrammar.grammar.source import load_json
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec


@dataclass(frozen=True)
class PreparedSchema:
    """A schema as a backend gets it, and the pointers of what will not be enforced."""

    schema: Any
    weakened: tuple[str, ...]

    @property
    def text(self) -> str:
        """The schema as JSON text."""
        return json.dumps(self.schema, ensure_ascii=True)


def prepare_schema(spec: GrammarSpec, facts: BackendFacts) -> PreparedSchema:
    """The schema of a `json_schema` or `json_object` spec."""
    del facts
    if spec.kind == "json_object":
        return PreparedSchema({"type": "object"}, ())
    return PreparedSchema(load_json(spec.source, "json_schema"), ())
