"""A recorded forward gives what the model gives, bit by bit, and only where it would."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from specgrammar_transformers.architecture import plane_shapes
from specgrammar_transformers.traced import TracedForward, traced_forward
from tests.transformers_adapter.tiny import random_model, tiny_model


def traced(model: PreTrainedModel) -> TracedForward | None:
    return traced_forward(model.train(False), plane_shapes(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shapes_that_were_not_recorded_give_what_the_model_gives(dtype: torch.dtype, attention: str) -> None:
    model: Any = tiny_model(attention=attention)
    model.to(dtype)
    recording = traced(model)
    assert recording is not None
    with torch.no_grad():
        for bs, num_nodes, num_slots in [(1, 1, 1), (1, 1, 40), (4, 1, 7), (5, 6, 6), (2, 16, 300)]:
            ours, theirs = (recording._example(bs, num_nodes, num_slots) for _ in range(2))
            ids, mask, positions, nodes, *stacks = ours
            assert torch.equal(recording(ids, mask, positions, nodes, stacks), recording._plain(*theirs))
            assert all(map(torch.equal, ours, theirs)), "the cache holds other keys or values"


def test_weights_that_change_in_place_are_seen() -> None:
    model: Any = tiny_model()
    recording = traced(model)
    assert recording is not None
    example = recording._example(1, 2, 5)
    with torch.no_grad():
        before = recording._recorded(*example)
        model.lm_head.weight.mul_(2)
        assert torch.equal(recording._recorded(*example), 2 * before)
    assert recording.is_faithful


def test_a_model_that_nobody_uses_is_let_go() -> None:
    model = tiny_model()
    recording, gone = traced(model), weakref.ref(model)
    assert recording is not None
    del model, recording
    gc.collect()
    assert gone() is None


def hook(model: Any) -> None:
    model.base_model.layers[1].mlp.register_forward_hook(lambda *_: None)


def replace(model: Any) -> None:
    part = model.base_model.layers[0].self_attn
    part.forward = part.forward


def other_weight(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 2)


def other_part(model: Any) -> None:
    model.base_model.layers[0].mlp = torch.nn.Identity()


def train(model: Any) -> None:
    model.train()


def other_dtype(model: Any) -> None:
    model.to(torch.bfloat16)


def other_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


@pytest.mark.parametrize("change", [hook, replace])
def test_a_model_that_somebody_changed_is_not_recorded(change: Callable[[Any], None]) -> None:
    changed = tiny_model()
    change(changed)
    assert traced(changed) is None


@pytest.mark.parametrize(
    "change", [hook, replace, other_weight, other_part, train, other_dtype, other_attention]
)
def test_a_model_that_somebody_changed_is_not_replaced_by_its_recording(
    change: Callable[[Any], None],
) -> None:
    model = tiny_model()
    recording = traced(model)
    assert recording is not None
    assert recording.is_faithful
    change(model)
    assert not recording.is_faithful


def test_a_hook_on_all_modules_is_seen() -> None:
    recording = traced(tiny_model())
    assert recording is not None
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not recording.is_faithful
    finally:
        handle.remove()
    assert recording.is_faithful


def test_positions_that_branch_are_not_recorded() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    assert traced(random_model("llama", "sdpa", **sizes, intermediate_size=48, rope_parameters=rope)) is None


def test_other_models_are_not_recorded() -> None:
    assert traced(tiny_model("gpt2")) is None


def test_a_recording_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch on the number of nodes, of which the recording has one side."""
    model: Any = tiny_model()
    rotary: Any = type(model.base_model.rotary_emb)
    forward = rotary.forward

    def branches(self: torch.nn.Module, x: torch.Tensor, position_ids: torch.Tensor) -> object:
        return forward(self, x, position_ids if x.shape[1] > 2 else position_ids + 1)

    monkeypatch.setattr(rotary, "forward", branches)
    assert traced(model) is None
