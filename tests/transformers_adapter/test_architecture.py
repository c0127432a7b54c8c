"""Models whose memory cannot be kept for one path are refused when they are loaded, with the reason."""

import inspect

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from specgrammar.errors import ModelError
from specgrammar_transformers import TransformersTarget
from tests.transformers_adapter.tiny import tiny_model

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4))


def falcon_with_alibi() -> PreTrainedModel:
    return FalconForCausalLM(FalconConfig(**SMALL, alibi=True))


def mamba() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1))


def jamba() -> PreTrainedModel:
    return JambaForCausalLM(
        JambaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2, use_mamba_kernels=False)
    )


def t5() -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )


@pytest.mark.parametrize(
    "build,reason",
    [
        (bloom, "takes no `position_ids`"),
        (falcon_with_alibi, "cannot be given a mask per node"),
        (mamba, "takes no `position_ids`"),
        (jamba, "layer 0 of JambaForCausalLM keeps a LinearAttentionLayer"),
        (t5, "encoder-decoder"),
    ],
)
def test_invariant_10_a_model_that_cannot_keep_paths_is_refused(build: object, reason: str) -> None:
    assert callable(build)
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
    mistral = MistralConfig(**SMALL, intermediate_size=64, num_key_value_heads=2, sliding_window=16)
    gemma = Gemma3TextConfig(
        **SMALL, intermediate_size=64, num_key_value_heads=2, head_dim=8, sliding_window=24
    )
    assert TransformersTarget(MistralForCausalLM(mistral), 1).max_length == 16
    target = TransformersTarget(Gemma3ForCausalLM(gemma), 1)
    assert target.max_length == 24
    with pytest.raises(ModelError, match="needs 25 tokens"):
        target.add("a", [1] * 25)
