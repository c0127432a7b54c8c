"""The target as a data generator needs it: many slots at a time, one token a step each, features kept.

This is a Llama forward of its own and not the transformers adapter, because it is several times faster at a
batch of
100: it keeps keys and values where they are, groups the queries that share a key head, and copies nothing per
    step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specgrammar.errors import ModelError
from specgrammar.spec.eagle.config import LAST

_Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From the index of a layer and its queries, keys and values `[b, n, heads, head_dim]` to what is read."""


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class SlotTarget:
    """A Llama-family model over a fixed number of slots, each with its own sequence.

    Features are the residual stream in front of the layers that are asked for, in ascending order; `LAST`,
    what the output head reads, comes at the end.
    """

    def __init__(
        self, model: PreTrainedModel, num_slots: int, max_length: int, feature_layers: Sequence[int]
    ) -> None:
        """Fuse the weights and reserve the cache.

        Raises:
            ModelError: the model is not of the Llama family.
        """
        config = model.config
        if config.model_type != "llama" or getattr(config, "attention_bias", False):
            raise ModelError(f"data is made with Llama-family models without biases, not {config.model_type!r}")
        weights: dict[str, Tensor] = {name: value.detach() for name, value in model.state_dict().items()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = weights.get("lm_head.weight", self.embedding)
        self.final_norm = weights["model.norm.weight"]
        self.feature_layers = tuple(feature_layers)
        self.max_length = max_length
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        self._eps = config.rms_norm_eps
        self._layers = [_fused(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        shape = (num_slots, self._num_kv_heads, max_length, self._head_dim)
        self._keys = [torch.zeros(shape, dtype=self.embedding.dtype) for _ in self._layers]
        self._values = [torch.zeros(shape, dtype=self.embedding.dtype) for _ in self._layers]
        self._lengths = torch.zeros(num_slots, dtype=torch.int64)
        angles = rope_angles(config.rope_parameters["rope_theta"], self._head_dim, max_length)
        self._cos, self._sin = (part.to(self.embedding.dtype) for part in (angles.cos(), angles.sin()))

    @torch.no_grad()
    def prefill(self, slots: Sequence[int], prompts: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
        """Start sequences anew in some slots.

        Returns:
            The logits behind each prompt, float32 `[n, vocabulary]`, and per prompt the features of its tokens,
            `[num_tokens, num_features, hidden]`.
        """
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        into = torch.tensor(slots)
        self._lengths[into] = torch.tensor(lengths)
        cos, sin = self._cos[:longest], self._sin[:longest]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            self._keys[layer][into, :, :longest] = k
            self._values[layer][into, :, :longest] = v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

        last, features = self._forward(tokens, attend)
        ends = last[torch.arange(len(prompts)), torch.tensor(lengths) - 1]
        logits = F.linear(ends, self.head).float()
        return logits, [rows[:length] for rows, length in zip(features, lengths, strict=True)]

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One more token for every slot, int64 `[num_slots]`; unused slots are run as well, and wrap around.

        Returns:
            Logits, float32 `[num_slots, vocabulary]`, and features `[num_slots, num_features, hidden]`.
        """
        self._lengths.remainder_(self.max_length - 1)
        positions = self._lengths.clone()
        self._lengths += 1
        length = int(self._lengths.max())
        slots = torch.arange(len(tokens))
        cos, sin = self._cos[positions][:, None, None], self._sin[positions][:, None, None]
        seen = torch.arange(length) <= positions[:, None]
        mask = torch.zeros(seen.shape, dtype=self.embedding.dtype).masked_fill_(~seen, float("-inf"))
        groups = self._num_heads // self._num_kv_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            self._keys[layer][slots, :, positions] = k[:, 0]
            self._values[layer][slots, :, positions] = v[:, 0]
            # The queries of one key head are its rows, so keys need not be repeated.
            grouped = q.reshape(len(tokens), self._num_kv_heads, groups, self._head_dim)
            keys, values = self._keys[layer][:, :, :length], self._values[layer][:, :, :length]
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[:, None, None])

        last, features = self._forward(tokens[:, None], attend)
        return F.linear(last[:, 0], self.head).float(), features[:, 0]

    def _forward(self, tokens: Tensor, attend: _Attend) -> tuple[Tensor, Tensor]:
        x = self.embedding[tokens]
        kept: list[Tensor] = []
        size = self._num_kv_heads * self._head_dim
        for index, layer in enumerate(self._layers):
            if index in self.feature_layers:
                kept.append(x)
            qkv = F.linear(self._norm(x, layer.input_norm), layer.qkv)
            q, k, v = (
                torch.unflatten(part, -1, (-1, self._head_dim))
                for part in torch.split(qkv, [self._num_heads * self._head_dim, size, size], dim=-1)
            )
            x = x + F.linear(attend(index, q, k, v).reshape(*tokens.shape, -1), layer.out)
            gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        last = self._norm(x, self.final_norm)
        if LAST in self.feature_layers:
            kept.append(last)
        return last, torch.stack(kept, dim=-2)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)).to(x.dtype)


def rope_angles(theta: float, head_dim: int, length: int) -> Tensor:
    """Angles of the rotary embedding, float32 `[length, head_dim]`, both halves the same."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding; the halves of the last axis are the pairs."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def _fused(weights: dict[str, Tensor], prefix: str) -> _Layer:
    def joined(*names: str) -> Tensor:
        return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

    attention, mlp = "self_attn.", "mlp."
    return _Layer(
        joined("input_layernorm"),
        joined(*itertools.chain(f"{attention}{part}_proj" for part in "qkv")),
        joined(f"{attention}o_proj"),
        joined("post_attention_layernorm"),
        joined(f"{mlp}gate_proj", f"{mlp}up_proj"),
        joined(f"{mlp}down_proj"),
    )
