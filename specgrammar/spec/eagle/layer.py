"""The decoder layer of a draft head, in both layouts; attention is left to the caller, who has the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specgrammar.spec.eagle.config import EagleConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From rotated queries `[b, heads, q, head_dim]`, rotated keys and values `[b, kv_heads, q, head_dim]` of new
positions to what the queries read, `[b, heads, q, head_dim]`. Keeps the keys and values, if anybody does."""


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight: nn.Parameter = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last axis."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * scaled.to(x.dtype)


class Attention(nn.Module):
    """Projections of grouped-query attention with a rotary embedding."""

    def __init__(self, config: EagleConfig, input_size: int) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj: nn.Linear = nn.Linear(input_size, queries, bias=config.attention_bias)
        self.k_proj: nn.Linear = nn.Linear(input_size, keys, bias=config.attention_bias)
        self.v_proj: nn.Linear = nn.Linear(input_size, keys, bias=config.attention_bias)
        self.o_proj: nn.Linear = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Attend from `[b, q, input]` to `[b, q, hidden]`; the angles are `[b, 1, q, head_dim]`."""
        q, k, v = (self._split(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        read = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        output: Tensor = self.o_proj(read.transpose(1, 2).flatten(2))
        return output

    def keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """What other positions read of `[b, q, input]`: keys and values `[b, kv_heads, q, head_dim]`."""
        return rotate(self._split(self.k_proj(x)), cos, sin), self._split(self.v_proj(x))

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (-1, self._head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj: nn.Linear = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj: nn.Linear = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj: nn.Linear = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Per position."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class HeadLayer(nn.Module):
    """One layer and how it reads an embedding and a feature.

    The names of the parameters are those of published checkpoints, `fc` of the layout `eagle` included.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self._is_eagle3 = config.layout == "eagle3"
        self.self_attn: Attention = Attention(config, 2 * size if self._is_eagle3 else size)
        self.mlp: Mlp = Mlp(config)
        self.post_attention_layernorm: RMSNorm = RMSNorm(size, config.norm_eps)
        if self._is_eagle3:
            self.input_layernorm: RMSNorm = RMSNorm(size, config.norm_eps)
            self.hidden_norm: RMSNorm = RMSNorm(size, config.norm_eps)
        else:
            self.fc: nn.Linear = nn.Linear(2 * size, size, bias=config.fusion_bias)

    def read(self, embedding: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads of a position, and what its result is added to."""
        if self._is_eagle3:
            return torch.cat((self.input_layernorm(embedding), self.hidden_norm(hidden)), dim=-1), hidden
        joined = self.fc(torch.cat((embedding, hidden), dim=-1))
        return joined, joined

    def forward(self, embedding: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """From embeddings and features, both `[b, q, hidden]`, to the next features `[b, q, hidden]`."""
        x, residual = self.read(embedding, hidden)
        residual = residual + self.self_attn(x, cos, sin, attend)
        output: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return output


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to the last axis, whose halves are the pairs."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
