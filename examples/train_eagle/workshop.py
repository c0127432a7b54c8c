"""What all stages share: the work folder, the target, its grammars, and heads around its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from examples.train_eagle.batches import Example
from specgrammar.spec.eagle.checkpoint import load_head
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.head import EagleHead
from specgrammar_transformers import TransformersAdapter
from specgrammar_transformers.loading import load_model
from specgrammar_transformers.model_store import fetch_default_model
from specgrammar_xgrammar import XGrammarBackend

FEATURE_LAYERS = (2, 15, 27, LAST)
"""Features that are stored with the answers, in the numbering of `EagleConfig`."""

DRAFT_VOCABULARY = 8192


class Workshop:
    """The target and what goes with it; each part is loaded when it is first needed."""

    def __init__(self, folder: Path) -> None:
        """Work in a folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def load_model(self, dtype: str) -> PreTrainedModel:
        """The target, in `float32` or `bfloat16`."""
        return load_model(fetch_default_model(), "cpu", dtype)[0]

    @cached_property
    def adapter(self) -> TransformersAdapter:
        """The target in float32, as an engine has it."""
        return TransformersAdapter.load(device="cpu", dtype="float32", max_batch_size=1)

    @cached_property
    def backend(self) -> XGrammarBackend:
        """Compiles the schemas."""
        return XGrammarBackend(self.adapter.vocabulary)

    @cached_property
    def _model(self) -> PreTrainedModel:
        return self.load_model("float32")

    @property
    def model_config(self) -> Any:
        """The target's config."""
        return self._model.config

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The target's tensors in float32, by name."""
        return {name: tensor.detach() for name, tensor in self._model.state_dict().items()}

    @property
    def embedding(self) -> Tensor:
        """The target's embedding, which is its output head too."""
        return self.weights["model.embed_tokens.weight"]

    @cached_property
    def head_config(self) -> EagleConfig:
        """The shape of the heads that are trained: about 5 M weights, 11 MB in float16."""
        config = self.model_config
        return EagleConfig(
            layout="eagle3",
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            target_hidden_size=config.hidden_size,
            feature_layers=FEATURE_LAYERS,
            draft_vocab_size=DRAFT_VOCABULARY,
            rope_theta=config.rope_parameters["rope_theta"],
            norm_eps=config.rms_norm_eps,
            feature_norms=True,
        )

    def new_head(self, draft_ids: Tensor, seed: int) -> EagleHead:
        """A head to begin with: the MLP and the last norm are the target's, the rest is random."""
        torch.manual_seed(seed)
        head = EagleHead(self.head_config, self.embedding, self.embedding, draft_ids)
        for name, parameter in head.named_parameters():
            if parameter.dim() == 2:
                # What is added to the residual stream begins small.
                std = 0.01 if "o_proj" in name or "down_proj" in name else 0.02
                torch.nn.init.normal_(parameter, std=std)
        last = f"model.layers.{self.model_config.num_hidden_layers - 1}."
        taken = {"norm.weight": "model.norm.weight"}
        for name in ("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            taken[f"layers.0.{name}.weight"] = f"{last}{name}.weight"
        for name, theirs in taken.items():
            head.get_parameter(name).data.copy_(self.weights[theirs])
        return head

    def load_head(self, folder: Path) -> EagleHead:
        """A head from a folder, in float32."""
        return load_head(folder, self.embedding, self.embedding, self.model_config.num_hidden_layers)


def frequent_ids(examples: Sequence[Example], vocab_size: int, count: int) -> Tensor:
    """The most frequent ids of some answers and prompts, ascending; what the target chooses counts most.

    Ids that never occur follow in their own order, which for a BPE vocabulary is that of frequency as well.
    """
    counts = -1e-6 * torch.arange(vocab_size, dtype=torch.float64)
    for example in examples:
        counts += torch.bincount(example.tokens, minlength=vocab_size)
        counts += 4 * torch.bincount(example.top_ids[:, 0], minlength=vocab_size)
    return counts.topk(count).indices.sort().values
