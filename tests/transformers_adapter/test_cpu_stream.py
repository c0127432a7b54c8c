"""The default model beside the host: the same text as inline, from the same weights."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.staging import Device
from specgrammar.runtime.device import device_for
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.sampling import SamplingParams
from specgrammar_transformers import DEFAULT_MODEL, TransformersAdapter, fetch_default_model, load_model

pytestmark = pytest.mark.model

SCHEMA = """{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
"required": ["name", "age"], "additionalProperties": false}"""


@pytest.fixture(scope="module")
def loaded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_model(fetch_default_model(), "cpu")


def generate(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], device: Device, algorithm: str, options: Any
) -> dict[str, tuple[int, ...]]:
    adapter = TransformersAdapter(*loaded, max_batch_size=2, device=device)
    assert adapter.device is device
    config = Config(backend="xgrammar", algorithm=algorithm, max_batch_size=2, algorithm_options=options)
    requests = [
        Request(
            str(i),
            tuple(adapter.encode_prompt(f"Describe {who} as JSON.")),
            GrammarSpec.json_schema(SCHEMA),
            SamplingParams(temperature=0.8 * i, seed=i),
            max_new_tokens=6,
        )
        for i, who in enumerate(("Ada", "Bob"))
    ]
    outputs = {output.request_id: output for output in Engine.build(config, adapter).generate(requests)}
    assert [output.error for output in outputs.values()] == [None] * 2
    return {name: output.token_ids for name, output in outputs.items()}


@pytest.mark.parametrize(
    "algorithm, options",
    [
        ("none", {}),
        ("ngram", {}),
        ("chain", {}),
        ("chain", {"drafter": DEFAULT_MODEL, "num_draft_tokens": 2, "draft_sampling": "sampled"}),
    ],
)
def test_a_stream_changes_nothing(
    loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase], algorithm: str, options: dict[str, Any]
) -> None:
    inline = generate(loaded, device_for("cpu"), algorithm, options)
    assert generate(loaded, device_for("cpu-stream"), algorithm, options) == inline
