"""Generations with a small, randomly initialised Llama-shaped model and a toy vocabulary, on any device."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specgrammar import Config, Engine, GrammarSpec, Request, SamplingParams
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.protocols.staging import Device
from specgrammar.protocols.target import TargetModel
from specgrammar.runtime.device import device_for
from specgrammar.spec import accept
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.spec.sampling import MaskPolicyChoice
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_transformers import TransformersTarget
from specgrammar_xgrammar import XGrammarBackend


@contextmanager
def accepting_by(kernels_on: tuple[str, ...]) -> Iterator[None]:
    """The step's acceptance is the kernels' on these kinds of devices, and a walk of the host's elsewhere."""
    before, accept.ACCELERATORS = accept.ACCELERATORS, kernels_on
    try:
        yield
    finally:
        accept.ACCELERATORS = before


def toy_vocabulary() -> Vocabulary:
    """All bytes, some pairs that JSON uses, and one stop token."""
    tokens = [bytes([i]) for i in range(256)] + [b'": ', b", ", b'{"', b'"}', b"tr", b"ue", b"fa", b"lse", b""]
    stop = len(tokens) - 1
    return Vocabulary(tuple(tokens), stop_ids=(stop,), special_ids=frozenset({stop}))


@dataclass
class RandomModel:
    """The engine's adapter around a small Llama-shaped model with random weights."""

    target: TargetModel
    vocabulary: Vocabulary
    device: Device

    def load_drafter(self, name: str) -> CausalDrafter:
        """There is none."""
        raise ValueError(name)


def random_model(device: torch.device, vocab_size: int) -> TargetModel:
    """Four layers of 256, float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size + 7,  # padded columns
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()
    return TransformersTarget(model, max_batch_size=4)


def generation(device: torch.device, backend: str, max_new_tokens: int) -> tuple[str, bool, float | None]:
    """`none`, `ngram` and steps that accept by kernels give the same tokens, and JSON that is valid."""
    make_backend = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}[backend]
    vocabulary = toy_vocabulary()
    schema = {
        "type": "object",
        "properties": {
            "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 8, "maxItems": 8},
            "name": {"type": "string", "maxLength": 12},
        },
        "required": ["flags", "name"],
    }
    requests = [
        Request(
            str(i),
            tuple(b"flags: "),
            GrammarSpec.json_schema(schema),
            SamplingParams(float(i % 2), top_p=0.9 if i == 3 else 1.0, seed=i),
            max_new_tokens,
        )
        for i in range(4)
    ]
    runs: dict[str, dict[str, tuple[int, ...]]] = {}
    seconds: dict[str, float] = {}
    ways: tuple[tuple[str, SpecAlgorithm, MaskPolicyChoice, tuple[str, ...]], ...] = (
        ("none", NoSpeculation(), "auto", ()),
        ("ngram", NgramAlgorithm(), "eager", ()),
        ("kernels", NgramAlgorithm(), "eager", (device.type,)),
    )
    for name, algorithm, policy, kernels_on in ways:
        adapter = RandomModel(random_model(device, vocabulary.vocab_size), vocabulary, device_for(str(device)))
        config = Config(max_batch_size=4, mask_policy=policy)
        engine = Engine(adapter, make_backend(vocabulary), algorithm, config)
        begin = time.perf_counter()
        with accepting_by(kernels_on):
            outputs = list(engine.generate(requests))
        seconds[name] = time.perf_counter() - begin
        runs[name] = {output.request_id: output.token_ids for output in outputs}
        if any(output.finish_reason != "stop" for output in outputs):
            return str([output.error for output in outputs]), False, None
        for output in outputs:
            json.loads(output.text)
    num_tokens = sum(len(tokens) for tokens in runs["kernels"].values())
    none, ngram = (f"{seconds[name] / seconds['kernels']:.2f}" for name in ("none", "ngram"))
    shape = f"4 requests, us per token; none takes {none} times as long, ngram with walks {ngram}"
    agrees = runs["none"] == runs["ngram"] == runs["kernels"]
    return shape, agrees, 1e6 * seconds["kernels"] / num_tokens
