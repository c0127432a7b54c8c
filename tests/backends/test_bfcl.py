"""The converter of the BFCL set, on rows of its shape; every schema is enforced strictly."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.bfcl import load_bfcl, main, to_json_schema
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, Vocabulary
from tests.backends.schemas import walk

PARAMETERS: dict[str, Any] = {
    "type": "dict",
    "properties": {
        "text": {"type": "string", "description": "A place", "optional": True},
        "ate": {"type": "tuple", "items": {"type": "float"}},
        "use": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "data": {"type": "any"},
        "deed": {"type": "dict", "properties": {"n": {"type": "integer"}, "en": {"type": "boolean"}}},
        "feed": {"type": "dict", "description": "anything"},
        "rest": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    },
    "required": ["use", "text"],
}
ROWS = [
    {
        "id": f"simple_python_{i}",
        "question": [[{"role": "user", "content": f"Question {i}?"}]],
        "function": [{"name": "f.g", "description": "Does it.", "parameters": PARAMETERS}],
    }
    for i in range(3)
]


def bounded(schema: dict[str, Any]) -> bool:
    """Whether everything in a schema ends."""
    if "enum" in schema or schema["type"] == "boolean":
        return True
    match schema["type"]:
        case "object":
            inner = [*schema.get("properties", {}).values()]
            if schema["additionalProperties"] is not False:
                inner.append(schema["additionalProperties"])
                return "maxProperties" in schema and all(map(bounded, inner))
            return all(map(bounded, inner))
        case "array":
            return "maxItems" in schema and bounded(schema["items"])
        case "string":
            return "maxLength" in schema
        case _:
            return {"minimum", "maximum"} <= schema.keys()


def test_schemas_are_bounded_and_enforced(native: GrammarBackend, vocabulary: Vocabulary) -> None:
    schema = to_json_schema(PARAMETERS)
    assert bounded(schema)
    assert schema["required"] == ["text", "use"]
    assert list(schema["properties"]) == list(PARAMETERS["properties"])
    compiled = native.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert compiled.weakened == ()
    ended = [walk(native.matcher(compiled), vocabulary, seed, 400) for seed in range(12)]
    texts = [text for text in ended if text is not None]
    assert texts
    for text in texts:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def test_the_command_writes_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "data.json", tmp_path / "out.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["--path", str(data), "--limit", "2", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["simple_python_0", "simple_python_1"]
    assert rows[0]["prompt"].startswith("Question 0?")
    assert "f.g" in rows[0]["prompt"]
    assert rows[0]["schema"] == to_json_schema(PARAMETERS) == load_bfcl(data)[2].schema
    assert main(["--path", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
