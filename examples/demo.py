"""The main job, on a real model: prompts to JSON that follows a schema, without and with speculation.

Run it with `make demo`. Greedy in float32, so that both runs must give the same text, token by token.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import jsonschema

from specgrammar import Config, Engine, GrammarSpec, Request
from specgrammar_transformers import TransformersAdapter

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "is_capital": {"type": "boolean"},
        "sights": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 30},
                    "kind": {"enum": ["museum", "park", "church", "palace", "bridge", "tower"]},
                },
                "required": ["name", "kind"],
            },
        },
    },
    "required": ["name", "country", "is_capital", "sights"],
}
PROMPTS = ("Describe Paris.", "Describe Rome.", "Describe London.", "Describe Berlin.")


@dataclass(frozen=True)
class Run:
    """What one algorithm made of all prompts."""

    texts: list[str]
    num_tokens: int
    num_verify_steps: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Speed."""
        return self.num_tokens / self.seconds


def main() -> int:
    """Generate twice, compare, and report."""
    print("loading SmolLM2-135M-Instruct (fetched and converted once) ...", file=sys.stderr)
    adapter = TransformersAdapter.load(dtype="float32", max_batch_size=1)
    plain, drafted = generate(adapter, "none"), generate(adapter, "ngram")

    for prompt, text in zip(PROMPTS, plain.texts, strict=True):
        jsonschema.validate(json.loads(text), SCHEMA)
        print(f"\n{prompt}\n  none:  {text}\n  ngram: {drafted.texts[PROMPTS.index(prompt)]}")
    equal = plain.texts == drafted.texts
    print(f"\nboth outputs equal: {'yes' if equal else 'NO'}\n")
    print(f"{'':24}{'none':>10}{'ngram':>10}")
    for name, values in (
        ("tokens", (plain.num_tokens, drafted.num_tokens)),
        ("verify steps", (plain.num_verify_steps, drafted.num_verify_steps)),
        ("tokens per verify step", [run.num_tokens / run.num_verify_steps for run in (plain, drafted)]),
        ("tokens per second", (plain.tokens_per_second, drafted.tokens_per_second)),
    ):
        print(f"{name:24}{values[0]:10.5g}{values[1]:10.5g}")
    print(f"\nngram is {drafted.tokens_per_second / plain.tokens_per_second:.2f} times as fast as none")
    return 0 if equal else 1


def generate(adapter: TransformersAdapter, algorithm: str) -> Run:
    """All prompts, one at a time, with one algorithm."""
    engine = Engine.build(Config(backend="xgrammar", algorithm=algorithm, max_batch_size=1), adapter)
    grammar = GrammarSpec.json_schema(SCHEMA)
    requests = [
        Request(prompt, tuple(adapter.encode_prompt(f"{prompt} Answer in JSON.")), grammar, max_new_tokens=200)
        for prompt in PROMPTS
    ]
    begin = time.perf_counter()
    outputs = {output.request_id: output for output in engine.generate(requests)}
    seconds = time.perf_counter() - begin
    return Run(
        [outputs[prompt].text for prompt in PROMPTS],
        sum(len(output.token_ids) for output in outputs.values()),
        sum(output.num_verify_steps for output in outputs.values()),
        seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
