"""Folders with random checkpoints, as they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.eagle.reference import SIZES, Tensors, layer_shapes, random_tensors

NUM_TARGET_LAYERS = 12
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": SIZES.hidden,
    "num_attention_heads": SIZES.heads,
    "num_key_value_heads": SIZES.kv_heads,
    "head_dim": SIZES.head_dim,
    "intermediate_size": SIZES.inner,
    "num_hidden_layers": 1,
    "rms_norm_eps": SIZES.eps,
    "rope_theta": SIZES.theta,
    "vocab_size": SIZES.vocab,
}
DRAFT_IDS = torch.tensor([0, 3, 4, 7, 8, 9, 20, 21, 33, 39])


def target_tensors(seed: int = 100) -> tuple[Tensor, Tensor]:
    """Embedding and output head of a target."""
    tensors = random_tensors(
        {"embedding": (SIZES.vocab, SIZES.hidden), "output": (SIZES.vocab, SIZES.hidden)}, seed
    )
    return tensors["embedding"], tensors["output"]


def eagle1(*, bias: bool = True, attention_bias: bool = False, seed: int = 0) -> tuple[dict[str, Any], Tensors]:
    """EAGLE-1 or 2: config and tensors."""
    size = SIZES.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (SIZES.vocab, size),
        "fc.weight": (size, 2 * size),
    }
    shapes |= layer_shapes("layers.0.", size)
    if bias:
        shapes["fc.bias"] = (size,)
    if attention_bias:
        for name in "qkv":
            shapes[f"layers.0.self_attn.{name}_proj.bias"] = (
                shapes[f"layers.0.self_attn.{name}_proj.weight"][0],
            )
    config = CONFIG | {"architectures": ["LlamaForCausalLM"], "bias": bias, "attention_bias": attention_bias}
    return config, random_tensors(shapes, seed)


def eagle3(
    *, prefix: str = "midlayer.", fc_norm: bool = False, seed: int = 0
) -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3 with an output head of its own: config and tensors."""
    size = SIZES.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, 3 * size),
        "norm.weight": (size,),
        "lm_head.weight": (len(DRAFT_IDS), size),
        f"{prefix}input_layernorm.weight": (size,),
        f"{prefix}hidden_norm.weight": (size,),
    }
    shapes |= layer_shapes(prefix, 2 * size)
    if fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (size,) for i in range(3)}
    tensors = random_tensors(shapes, seed)
    tensors["d2t"] = DRAFT_IDS - torch.arange(len(DRAFT_IDS))
    tensors["t2d"] = torch.isin(torch.arange(SIZES.vocab), DRAFT_IDS)
    architecture = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(DRAFT_IDS)}
    return CONFIG | architecture | ({"fc_norm": True} if fc_norm else {}), tensors


def several_steps(layout: str, num_steps: int, seed: int = 0) -> tuple[dict[str, Any], Tensors]:
    """A head with a layer for each step, which draws from the target's output head: config and tensors."""
    size = SIZES.hidden
    shapes: dict[str, tuple[int, ...]] = {}
    if layout == "eagle3":
        shapes |= {"fc.weight": (size, 3 * size), "norm.weight": (size,)}
    for step in range(num_steps):
        prefix = f"layers.{step}."
        if layout == "eagle3":
            shapes |= layer_shapes(prefix, 2 * size)
            shapes |= {f"{prefix}{name}.weight": (size,) for name in ("input_layernorm", "hidden_norm")}
        else:
            shapes |= layer_shapes(prefix, size) | {f"{prefix}fc.weight": (size, 2 * size)}
    name = "LlamaForCausalLMEagle3" if layout == "eagle3" else "LlamaForCausalLMEagle"
    return CONFIG | {"architectures": [name], "num_steps": num_steps, "bias": False}, random_tensors(
        shapes, seed
    )


def write_head(folder: Path, config: dict[str, Any], tensors: Tensors, *, binary: bool = False) -> Path:
    """Write `config.json` and the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
