"""Draft heads computed the slow way: one position after the other, from published tensors, without our
modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """A small head."""

    hidden: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 6
    inner: int = 24
    vocab: int = 40
    theta: float = 10_000.0
    eps: float = 1e-6


SIZES = Sizes()


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Weights that matter, but do not blow errors up from step to step; norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.15 + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def layer_shapes(prefix: str, width: int, sizes: Sizes = SIZES) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama layer whose attention reads `width`."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return {
        f"{prefix}self_attn.q_proj.weight": (queries, width),
        f"{prefix}self_attn.k_proj.weight": (keys, width),
        f"{prefix}self_attn.v_proj.weight": (keys, width),
        f"{prefix}self_attn.o_proj.weight": (sizes.hidden, queries),
        f"{prefix}mlp.gate_proj.weight": (sizes.inner, sizes.hidden),
        f"{prefix}mlp.up_proj.weight": (sizes.inner, sizes.hidden),
        f"{prefix}mlp.down_proj.weight": (sizes.hidden, sizes.inner),
        f"{prefix}post_attention_layernorm.weight": (sizes.hidden,),
    }


def rms_norm(x: Tensor, weight: Tensor, eps: float = SIZES.eps) -> Tensor:
    """The norm of one vector."""
    return weight * x / math.sqrt(float((x * x).mean()) + eps)


def turned(vector: Tensor, position: int, theta: float = SIZES.theta) -> Tensor:
    """The rotary embedding as a multiplication of complex numbers."""
    half = len(vector) // 2
    angles = torch.tensor([position * theta ** (-i / half) for i in range(half)])
    product = torch.complex(vector[:half], vector[half:]) * torch.polar(torch.ones(half), angles)
    return torch.cat((product.real, product.imag))


@dataclass(frozen=True)
class Entry:
    """Keys and values that one position left, by key head."""

    keys: list[Tensor]
    values: list[Tensor]


def run_position(
    tensors: Tensors,
    prefix: str,
    embedding: Tensor,
    hidden: Tensor,
    position: int,
    seen: Sequence[Entry],
    sizes: Sizes = SIZES,
) -> tuple[Tensor, Entry]:
    """One layer at one position that sees some entries and itself: its output, and its own entry."""
    if f"{prefix}hidden_norm.weight" in tensors:
        x = torch.cat(
            (
                rms_norm(embedding, tensors[f"{prefix}input_layernorm.weight"]),
                rms_norm(hidden, tensors[f"{prefix}hidden_norm.weight"]),
            )
        )
        residual = hidden
    else:
        fusion = prefix if f"{prefix}fc.weight" in tensors else ""
        residual = tensors[f"{fusion}fc.weight"] @ torch.cat((embedding, hidden))
        if f"{fusion}fc.bias" in tensors:
            residual = residual + tensors[f"{fusion}fc.bias"]
        x = residual

    def heads(name: str) -> list[Tensor]:
        y = tensors[f"{prefix}self_attn.{name}.weight"] @ x
        if f"{prefix}self_attn.{name}.bias" in tensors:
            y = y + tensors[f"{prefix}self_attn.{name}.bias"]
        return list(torch.split(y, sizes.head_dim))

    own = Entry([turned(k, position) for k in heads("k_proj")], heads("v_proj"))
    read = []
    for i, query in enumerate(heads("q_proj")):
        group = i // (sizes.heads // sizes.kv_heads)
        entries = [*seen, own]
        scores = [float(turned(query, position) @ e.keys[group]) / math.sqrt(sizes.head_dim) for e in entries]
        weights = torch.tensor(scores).softmax(0)
        read.append(sum((w * e.values[group] for w, e in zip(weights, entries, strict=True)), torch.zeros(1)))
    residual = residual + tensors[f"{prefix}self_attn.o_proj.weight"] @ torch.cat(read)
    y = rms_norm(residual, tensors[f"{prefix}post_attention_layernorm.weight"])
    gate = torch.nn.functional.silu(tensors[f"{prefix}mlp.gate_proj.weight"] @ y)
    inner = gate * (tensors[f"{prefix}mlp.up_proj.weight"] @ y)
    return residual + tensors[f"{prefix}mlp.down_proj.weight"] @ inner, own


def draft_outputs(
    tensors: Tensors,
    prefixes: Sequence[str],
    embedding: Tensor,
    fused: Sequence[Tensor],
    tokens: Sequence[int],
    drafts: Sequence[int],
) -> list[Tensor]:
    """The outputs of a chain: behind the committed tokens, then behind each draft.

    Args:
        tensors: of the layers.
        prefixes: of the layer of each step; the last one serves all later steps.
        embedding: of the target.
        fused: the features as the layer reads them, of tokens 0 to r-1.
        tokens: tokens 1 to r, the root.
        drafts: tokens behind the root.
    """
    kept: list[list[Entry]] = [[] for _ in prefixes]
    outputs: list[list[Tensor]] = [[] for _ in prefixes]
    for step, prefix in enumerate(prefixes):
        for position, token in enumerate(tokens):
            if position < step:
                outputs[step].append(torch.zeros(0))
                continue
            hidden = fused[position] if step == 0 else outputs[step - 1][position - 1]
            output, entry = run_position(tensors, prefix, embedding[token], hidden, position, kept[step])
            kept[step].append(entry)
            outputs[step].append(output)
    found = [outputs[0][-1]]
    for level, token in enumerate(drafts):
        step = min(level + 1, len(prefixes) - 1)
        output, entry = run_position(
            tensors, prefixes[step], embedding[token], found[-1], len(tokens) + level, kept[step]
        )
        kept[step].append(entry)
        found.append(output)
    return found
