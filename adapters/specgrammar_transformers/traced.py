"""A model's forward, recorded once as TorchScript.

What was recorded runs as one call without the interpreter: on a CPU stream it goes on while the host's Python
works, where a forward in Python waits for the interpreter's lock after each of its some hundred operations. It
also saves what Python needs to launch them.

A recording takes no other branch than the one it was made on. So only models are recorded that are known to
have none (`_STRAIGHT`), and a recording is used only where it gives bit by bit what the model gives, for
batches of other shapes than the one it was made with, and while nobody has hooked into the model or replaced a
part's `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from specgrammar_transformers.architecture import output_head
from specgrammar_transformers.kv_cache import PlaneShape, members_of, window_layers
from specgrammar_transformers.recording import record

_STRAIGHT = frozenset({"LlamaForCausalLM"})
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Models and position embeddings without a branch that depends on values or shapes."""

_RECORDED, *_CHECKED = (2, 3, 8), (1, 1, 5), (2, 1, 4), (3, 4, 9)
"""Requests, nodes of each, and slots that are read: of the recording, and of what it is held against."""


def traced_forward(
    model: PreTrainedModel, planes: Sequence[tuple[PlaneShape, PlaneShape]]
) -> TracedForward | None:
    """The recording of a model on a CPU; None where there can be none.

    Args:
        model: in evaluation mode.
        planes: per layer, the shapes of its keys and of its values.
    """
    if type(model).__name__ not in _STRAIGHT or not type(model).__module__.startswith("transformers."):
        return None
    if model.device.type != "cpu" or output_head(model) is None or _is_changed(list(model.modules())):
        return None
    rope: dict[str, object] = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _FIXED_ROPES:
        return None
    try:
        traced = TracedForward(model, planes)
        return traced if traced.is_exact() else None
    except Exception:  # the tracer refuses some attention implementations; the model runs without it
        return None


class TracedForward:
    """The logits of chosen nodes, without the interpreter."""

    def __init__(self, model: PreTrainedModel, planes: Sequence[tuple[PlaneShape, PlaneShape]]) -> None:
        """Record."""
        self._plain = _PlainForward(model, planes)
        self._planes = planes
        self._modules = list(model.modules())
        self._parts = [
            (named, name, part)
            for module in self._modules
            for named in (module._modules, module._parameters, module._buffers)
            for name, part in named.items()
        ]
        self._mode = _mode(model)
        with torch.no_grad():
            self._recorded: Callable[..., Any] = record(self._plain, self._example(*_RECORDED))

    @property
    def is_faithful(self) -> bool:
        """Whether the model would still do what was recorded; takes some 80 us.

        Nobody hooked into it, put other parts or weights in, or changed its mode. Weights that change in place
        are seen by the recording.
        """
        is_whole = all(named.get(name) is part for named, name, part in self._parts)
        return is_whole and _mode(self._plain.model) == self._mode and not _is_changed(self._modules)

    def __call__(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        nodes: torch.Tensor,
        stacks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """One forward.

        Args:
            ids: int64 `[bs, N]`.
            mask: additive, of the model's dtype, `[bs, 1, N, slots]`.
            positions: int64 `[bs, N]`.
            nodes: int64 `[n]`, which of the `bs * N` nodes get logits.
            stacks: the cache by `SlotCache.open_window`; its last N slots are written.

        Returns:
            Logits `[n, columns]`.
        """
        logits: torch.Tensor = self._recorded(ids, mask, positions, nodes, *stacks)
        return logits

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Whether it gives what the model gives, logits and cache."""
        for shape in _CHECKED * 2:  # TorchScript's executor changes its plan after the first calls
            ours, theirs = self._example(*shape), self._example(*shape)
            if not torch.equal(self._recorded(*ours), self._plain(*theirs)):
                return False
            if not all(map(torch.equal, ours, theirs)):
                return False
        return True

    def _example(self, bs: int, num_nodes: int, num_slots: int) -> tuple[torch.Tensor, ...]:
        """Arguments of such a shape, the same ones at each call."""
        random = torch.Generator().manual_seed(bs * num_nodes)
        dtype = self._plain.model.dtype
        ids = torch.randint(self._plain.model.config.vocab_size, (bs, num_nodes), generator=random)
        visible = torch.rand(bs, 1, num_nodes, num_slots, generator=random) < 0.7
        visible[..., -1] = True
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
        positions = torch.randint(num_slots, (bs, num_nodes), generator=random)
        nodes = torch.arange(0, bs * num_nodes, 2)
        stacks = [
            torch.randn(len(members), bs, shape.heads, num_slots, shape.head_dim, generator=random).to(
                shape.dtype
            )
            for shape, members in members_of(self._planes).items()
        ]
        return ids, mask, positions, nodes, *stacks


def _mode(model: PreTrainedModel) -> tuple[object, ...]:
    return model.dtype, model.device, model.config._attn_implementation, model.training


def _is_changed(modules: Sequence[torch.nn.Module]) -> bool:
    """Whether somebody hooked into a module or replaced its `forward`."""
    everywhere = torch.nn.modules.module
    return bool(everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks) or any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__ for module in modules
    )


class _PlainForward(torch.nn.Module):
    """What is recorded."""

    def __init__(self, model: PreTrainedModel, planes: Sequence[tuple[PlaneShape, PlaneShape]]) -> None:
        super().__init__()
        self.model = model
        self._members: Mapping[PlaneShape, list[int]] = members_of(planes)

    def forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        nodes: torch.Tensor,
        *stacks: torch.Tensor,
    ) -> torch.Tensor:
        layers = window_layers(self._members, stacks, ids.shape[1])
        hidden = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=Cache(layers=layers),
            use_cache=True,
        ).last_hidden_state
        head = output_head(self.model)
        assert head is not None
        logits: torch.Tensor = head(hidden.flatten(0, 1)[nodes])
        return logits
