"""`EagleConfig`: the shape of a draft head, as its checkpoint's config.json states it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specgrammar.checks import check_choice, check_int, check_number, refused
from specgrammar.errors import ConfigError, ModelError

Layout = Literal["eagle", "eagle3"]

LAST = -1
"""The feature that the target's output head reads: its last hidden state, behind the final norm."""


@dataclass(frozen=True)
class EagleConfig:
    """The shape of a draft head.

    Attributes:
        layout: how a position is read. `eagle` (EAGLE-1 and 2): embedding and feature are joined and projected
            in front of a layer without input norm, and the output is itself the next feature, which the
            target's head reads. `eagle3`: the features are projected, and attention reads the normed
            embedding beside the normed feature; the output has a norm of its own in front of the head.
        hidden_size: width of the head; that of the target's embedding.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides `num_heads`.
        head_dim: width of one of them; even.
        intermediate_size: width inside the MLP.
        vocab_size: rows of the target's embedding.
        target_hidden_size: width of one of the target's features.
        feature_layers: which features of the target are read. Number k is the residual stream in front of layer
            k, so that 0 is the embedding; `LAST` is behind the final norm. `eagle` reads `LAST` alone.
        draft_vocab_size: ids that are drafted where the caller names none; None for all of the target's.
        num_steps: layers, each for one step of drafting, as multi-token prediction heads have; the last one
            also serves the steps behind it. 1 for all EAGLE heads.
        rope_theta: base of the rotary embedding.
        norm_eps: added to the mean square in a norm.
        feature_norms: each feature has a norm in front of the projection (`eagle3` only).
        fusion_bias: the projection has a bias.
        attention_bias: queries, keys and values have biases.
    """

    layout: Layout
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    draft_vocab_size: int | None = None
    num_steps: int = 1
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    feature_norms: bool = False
    fusion_bias: bool = False
    attention_bias: bool = False

    def __post_init__(self) -> None:
        check_choice("EagleConfig: layout", self.layout, ("eagle", "eagle3"))
        for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size"):
            check_int(f"EagleConfig: {name}", getattr(self, name), 1)
        check_int("EagleConfig: target_hidden_size", self.target_hidden_size, 1)
        check_int("EagleConfig: num_steps", self.num_steps, 1)
        if self.draft_vocab_size is not None:
            check_int("EagleConfig: draft_vocab_size", self.draft_vocab_size, 1, self.vocab_size)
        check_number("EagleConfig: rope_theta", self.rope_theta, 0, above=True)
        check_number("EagleConfig: norm_eps", self.norm_eps, 0)
        if self.head_dim % 2:
            raise refused("EagleConfig: head_dim", self.head_dim, "an even number, for the rotary embedding")
        if self.num_heads % self.num_kv_heads:
            raise refused("EagleConfig: num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads}")
        if not self.feature_layers:
            raise refused("EagleConfig: feature_layers", self.feature_layers, "at least one layer")
        for i, layer in enumerate(self.feature_layers):
            check_int(f"EagleConfig: feature_layers[{i}]", layer, LAST)
        if self.layout == "eagle":
            self._check_eagle()

    def _check_eagle(self) -> None:
        if self.feature_layers != (LAST,):
            raise refused(
                "EagleConfig: feature_layers", self.feature_layers, f"({LAST},) in the layout 'eagle'"
            )
        if self.target_hidden_size != self.hidden_size:
            raise refused(
                "EagleConfig: target_hidden_size",
                self.target_hidden_size,
                f"the head's own hidden_size {self.hidden_size}, whose output is the target's next feature",
            )
        if self.feature_norms:
            raise refused("EagleConfig: feature_norms", True, "False in the layout 'eagle'")

    @property
    def feature_size(self) -> int:
        """Width of the joined features that the head is given per token."""
        return self.target_hidden_size * len(self.feature_layers)

    @classmethod
    def from_file(cls, path: str | Path, num_target_layers: int) -> EagleConfig:
        """Read a checkpoint's config.json; see `from_dict`.

        Raises:
            ModelError: there is no such file, or it holds no JSON object.
            ConfigError: a value is missing or impossible; the message begins with the path.
        """
        try:
            described = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read as the config of a draft head: {error}") from error
        if not isinstance(described, dict):
            raise ModelError(f"{path}: expected a JSON object, found {type(described).__name__}")
        try:
            return cls.from_dict(described, num_target_layers)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, described: Mapping[str, Any], num_target_layers: int) -> EagleConfig:
        """Take over a config in the form that EAGLE checkpoints are published with.

        A head is EAGLE-3 if its architecture's name says so, or if it has a draft vocabulary. Its features are
        those behind the layers `eagle_config.eagle_aux_hidden_state_layer_ids`, else what EAGLE-3 takes where
        nothing is said: in front of the layers 2, n/2 and n-3. `feature_layers`, which is our own, goes first.

        Args:
            described: the parsed config.json.
            num_target_layers: decoder layers of the target, n.

        Raises:
            ConfigError: a value is missing or impossible.
        """
        layout = _layout(described)
        hidden_size, num_heads = (
            _required(described, "hidden_size"),
            _required(described, "num_attention_heads"),
        )
        if not isinstance(hidden_size, int) or not isinstance(num_heads, int) or num_heads < 1:
            raise refused("num_attention_heads, hidden_size", (num_heads, hidden_size), "two positive integers")
        rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise refused(
                "rope_scaling: rope_type", kind, "'default': scaled rotary embeddings are not supported"
            )
        num_layers = described.get("num_hidden_layers", 1)
        if num_layers != 1:
            raise refused(
                "num_hidden_layers", num_layers, "1; layers of several steps are counted by num_steps"
            )
        return cls(
            layout=layout,
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=described.get("num_key_value_heads") or num_heads,
            head_dim=described.get("head_dim") or hidden_size // num_heads,
            intermediate_size=_required(described, "intermediate_size"),
            vocab_size=_required(described, "vocab_size"),
            target_hidden_size=described.get("target_hidden_size") or hidden_size,
            feature_layers=_feature_layers(described, layout, num_target_layers),
            draft_vocab_size=described.get("draft_vocab_size"),
            num_steps=described.get("num_steps", 1),
            rope_theta=rope.get("rope_theta", described.get("rope_theta", 10_000.0)),
            norm_eps=described.get("rms_norm_eps", 1e-6),
            feature_norms=bool(described.get("fc_norm", False)),
            fusion_bias=bool(described.get("bias", layout == "eagle")),
            attention_bias=bool(described.get("attention_bias", False)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The config in the published form; `from_dict` reads it back."""
        return {
            "architectures": ["LlamaForCausalLMEagle3" if self.layout == "eagle3" else "LlamaForCausalLMEagle"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "num_hidden_layers": 1,
            "num_steps": self.num_steps,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "feature_layers": list(self.feature_layers),
            "fc_norm": self.feature_norms,
            "bias": self.fusion_bias,
            "attention_bias": self.attention_bias,
        }


def _layout(described: Mapping[str, Any]) -> Layout:
    names = described.get("architectures") or []
    is_eagle3 = any("eagle3" in str(name).lower() for name in names)
    return "eagle3" if is_eagle3 or described.get("draft_vocab_size") is not None else "eagle"


def _feature_layers(described: Mapping[str, Any], layout: Layout, num_target_layers: int) -> tuple[int, ...]:
    own = described.get("feature_layers")
    if own is not None:
        return tuple(own)
    if layout == "eagle":
        return (LAST,)
    behind = (described.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if behind:
        return tuple(layer + 1 for layer in behind)
    if num_target_layers < 6:
        raise refused(
            "num_target_layers", num_target_layers, "at least 6, or a config that names feature_layers"
        )
    return (2, num_target_layers // 2, num_target_layers - 3)


def _required(described: Mapping[str, Any], key: str) -> Any:
    if key not in described:
        raise ConfigError(f"{key} is missing; expected the config of an EAGLE draft head")
    return described[key]
