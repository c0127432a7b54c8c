"""Models whose memory cannot be kept for one path are refused when they are loaded, with the reason."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from specgrammar.errors import ModelError
from specgrammar_transformers import TransformersTarget
from tests.transformers_adapter.tiny import random_model, tiny_model

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def t5() -> PreTrainedModel:
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return T5ForConditionalGeneration(config)


@pytest.mark.parametrize(
    "build,reason",
    [
        (lambda: random_model("bloom", **SMALL), "takes no `position_ids`"),
        (lambda: random_model("falcon", **SMALL, alibi=True), "cannot be given a mask per node"),
        (lambda: random_model("mamba", **SMALL), "takes no `position_ids`"),
        (
            lambda: random_model("jamba", **SMALL, num_key_value_heads=2, use_mamba_kernels=False),
            "layer 0 of JambaForCausalLM keeps a LinearAttentionLayer",
        ),
        (t5, "encoder-decoder"),
    ],
)
def test_invariant_10_a_model_that_cannot_keep_paths_is_refused(
    build: Callable[[], PreTrainedModel], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        TransformersTarget(build(), max_batch_size=1)


def test_a_model_that_ignores_the_mask_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the self-check is for: a fluent and wrong answer."""
    model = tiny_model()
    forward = model.forward

    def without_mask(**arguments: object) -> object:
        mask = arguments.get("attention_mask")
        if isinstance(mask, torch.Tensor):
            arguments["attention_mask"] = torch.zeros_like(mask)
        return forward(**arguments)

    without_mask.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # what inspect reads
    monkeypatch.setattr(model, "forward", without_mask)
    with pytest.raises(ModelError, match="does not follow the paths of a tree"):
        TransformersTarget(model, max_batch_size=1)


def test_a_sliding_window_limits_the_context() -> None:
    """Within the window such a layer sees everything; beyond it nothing is promised."""
    sizes = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
    assert TransformersTarget(random_model("mistral", **sizes, sliding_window=16), 1).max_length == 16
    target = TransformersTarget(random_model("gemma3_text", **sizes, sliding_window=24), 1)
    assert target.max_length == 24
    with pytest.raises(ModelError, match="needs 25 tokens"):
        target.add("a", [1] * 25)
