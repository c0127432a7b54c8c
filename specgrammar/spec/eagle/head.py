"""`EagleHead`: from a token and the target's feature in front of it to the next feature and the next token.

At position i the head reads the feature of token i (the target's, or in later steps of drafting its own
output) and the embedding of token i+1, and its output predicts token i+2. So with r tokens committed in front
of the root, the last committed token, the target's features of r tokens are known, and the head's output at
position r-1 drafts the first token behind the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specgrammar.errors import ModelError
from specgrammar.spec.eagle.config import EagleConfig
from specgrammar.spec.eagle.layer import Attend, HeadLayer, RMSNorm


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The tokens that may be drafted.

    Attributes:
        ids: the target's ids, int64 `[n]`, ascending, each once.
        rows: their rows of the output head, `[n, hidden]`.
    """

    ids: Tensor
    rows: Tensor


class EagleHead(nn.Module):
    """A draft head; the embedding and, mostly, the output head are the target's own tensors.

    Attributes:
        config: its shape.
        draft_ids: the ids that are drafted where the caller names none, int64, ascending.
    """

    draft_ids: Tensor
    _embedding: Tensor
    _output: Tensor
    _output_ids: Tensor

    def __init__(
        self,
        config: EagleConfig,
        embedding: Tensor,
        output: Tensor,
        draft_ids: Tensor | None = None,
        output_ids: Tensor | None = None,
    ) -> None:
        """Random weights around the target's tensors, which are shared and not copied.

        Args:
            config: the shape.
            embedding: `[vocab_size, hidden_size]`.
            output: rows of the output head, `[m, hidden_size]`.
            draft_ids: int64 `[draft_vocab_size]`, ascending, each once; None for all ids with a row.
            output_ids: the id of each row, ascending, each once; None where row i is id i.

        Raises:
            ModelError: a tensor does not fit the config.
        """
        super().__init__()
        self.config = config
        ids = torch.arange(len(output), device=output.device) if output_ids is None else output_ids
        drafted = ids if draft_ids is None else draft_ids
        _check("embedding", embedding, (config.vocab_size, config.hidden_size))
        _check("output", output, (len(ids), config.hidden_size))
        for name, values in (("draft_ids", drafted), ("output_ids", ids)):
            if not len(values) or int(values[0]) < 0 or int(values[-1]) >= config.vocab_size:
                raise ModelError(f"{name}: expected at least one id, all in [0, {config.vocab_size})")
            if not bool((values.diff() > 0).all()):
                raise ModelError(f"{name}: expected ascending ids, each once")
        # Buffers that a checkpoint does not hold: they move with the head, and are the target's.
        self.register_buffer("_embedding", embedding, persistent=False)
        self.register_buffer("_output", output, persistent=False)
        self.register_buffer("_output_ids", ids, persistent=False)
        self.register_buffer("draft_ids", drafted, persistent=False)
        frequencies = config.rope_theta ** (
            -torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=embedding.device) / config.head_dim
        )
        self.register_buffer("_frequencies", frequencies.repeat(2), persistent=False)
        self.layers: nn.ModuleList = nn.ModuleList(HeadLayer(config) for _ in range(config.num_steps))
        if config.layout == "eagle3":
            self.fc: nn.Linear = nn.Linear(config.feature_size, config.hidden_size, bias=config.fusion_bias)
            self.norm: RMSNorm = RMSNorm(config.hidden_size, config.norm_eps)
        if config.feature_norms:
            self.fc_norm: nn.ModuleList = nn.ModuleList(
                RMSNorm(config.target_hidden_size, config.norm_eps) for _ in config.feature_layers
            )

    def fuse(self, features: Tensor) -> Tensor:
        """The target's joined features, `[..., feature_size]`, as the head reads them, `[..., hidden_size]`."""
        if self.config.layout == "eagle":
            return features
        if self.config.feature_norms:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def step(self, step: int, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the layer of one step of drafting.

        Args:
            step: 0 for the target's features; 1 for what is drafted from its output, and so on.
            tokens: int64 `[b, q]`; the token behind the one that `hidden` is of.
            hidden: `[b, q, hidden_size]`: fused features, or outputs.
            positions: int64 `[b, q]`, of `hidden`.
            attend: attention over what the caller kept of the same layer, and over these positions.

        Returns:
            The outputs, `[b, q, hidden_size]`.
        """
        cos, sin = self.angles(positions, hidden.dtype)
        output: Tensor = self.layer(step)(self.embed(tokens).to(hidden.dtype), hidden, cos, sin, attend)
        return output

    def layer(self, step: int) -> HeadLayer:
        """The layer of a step of drafting."""
        return cast(HeadLayer, self.layers[min(step, len(self.layers) - 1)])

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embedding."""
        return F.embedding(tokens, self._embedding)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding for positions `[b, q]`, `[b, 1, q, head_dim]`."""
        angles = positions[:, None, :, None] * self.get_buffer("_frequencies").float()
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def vocabulary(self, more_ids: Tensor | None = None) -> DraftVocabulary:
        """The tokens to draft from: `draft_ids` and others, such as those of a prompt and a schema.

        It copies the rows, so make it when the requests change, and not in each step.

        Args:
            more_ids: int64 `[n]`, in any order; None for none. Ids that the output head has no row for, as in
                checkpoints with a head of their own, are left out.
        """
        return self.rows_of(
            self.draft_ids if more_ids is None else torch.unique(torch.cat((self.draft_ids, more_ids)))
        )

    def rows_of(self, ids: Tensor) -> DraftVocabulary:
        """A vocabulary of just these ids, int64, ascending, each once; those without a row are left out."""
        rows = torch.searchsorted(self._output_ids, ids).clamp_(max=len(self._output_ids) - 1)
        known = self._output_ids[rows] == ids
        return DraftVocabulary(ids[known], self._output[rows[known]])

    def logits(self, outputs: Tensor, vocabulary: DraftVocabulary) -> Tensor:
        """Scores of the next token, `[..., len(vocabulary.ids)]`, from outputs `[..., hidden_size]`."""
        if self.config.layout == "eagle3":
            outputs = self.norm(outputs)
        return F.linear(outputs, vocabulary.rows.to(outputs.dtype))


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{name} of the draft head: expected shape {list(shape)}, found {list(tensor.shape)}; the head "
            "belongs to another target"
        )
