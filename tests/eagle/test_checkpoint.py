"""Published checkpoints are loaded and computed as they were meant, and broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specgrammar.errors import ConfigError, ModelError
from specgrammar.spec.eagle.checkpoint import load_head, save_head
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.spec.eagle.state import HeadState
from tests.eagle.heads import (
    DRAFT_IDS,
    NUM_TARGET_LAYERS,
    eagle1,
    eagle3,
    several_steps,
    target_tensors,
    write_head,
)
from tests.eagle.reference import SIZES, Tensors, draft_outputs, rms_norm

TOKENS, DRAFTS = [5, 17, 2, 39, 8], [11, 0, 30]


def load(folder: Path, num_target_layers: int = NUM_TARGET_LAYERS) -> EagleHead:
    return load_head(folder, *target_tensors(), num_target_layers)


def chain(head: EagleHead, features: Tensor) -> list[Tensor]:
    """The outputs behind the committed tokens and behind each draft of a chain."""
    state = HeadState(head, 1, len(DRAFTS))
    outputs = [state.extend([0], torch.tensor(TOKENS), features, [len(TOKENS)])]
    for i, token in enumerate(DRAFTS):
        path = torch.ones(1, 1, i + 1, dtype=torch.bool)
        outputs.append(state.expand([0], torch.tensor([[token]]), outputs[-1][:, None], path)[:, 0])
    return [output[0] for output in outputs]


def random_features(width: int) -> Tensor:
    return torch.randn(len(TOKENS), width, generator=torch.Generator().manual_seed(7))


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("biases", [(True, False), (False, True)])
def test_eagle1(tmp_path: Path, binary: bool, biases: tuple[bool, bool]) -> None:
    config, tensors = eagle1(bias=biases[0], attention_bias=biases[1])
    head = load(write_head(tmp_path, config, tensors, binary=binary))
    features = random_features(SIZES.hidden)
    outputs = chain(head, features)
    embedding = tensors["embed_tokens.weight"]
    assert_close(outputs, draft_outputs(tensors, ["layers.0."], embedding, list(features), TOKENS, DRAFTS))
    # The output is a feature: the target's own head reads it as it stands.
    vocabulary = head.vocabulary()
    assert vocabulary.ids.tolist() == list(range(SIZES.vocab))
    torch.testing.assert_close(head.logits(outputs[1], vocabulary), target_tensors()[1] @ outputs[1])


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("fc_norm", [False, True])
def test_eagle3(tmp_path: Path, prefix: str, fc_norm: bool) -> None:
    config, tensors = eagle3(prefix=prefix, fc_norm=fc_norm)
    head = load(write_head(tmp_path, config, tensors))
    features = random_features(3 * SIZES.hidden)
    outputs = chain(head, features)
    parts = [list(row.split(SIZES.hidden)) for row in features]
    if fc_norm:
        parts = [[rms_norm(x, tensors[f"fc_norm.{i}.weight"]) for i, x in enumerate(row)] for row in parts]
    fused = [tensors["fc.weight"] @ torch.cat(row) for row in parts]
    assert_close(outputs, draft_outputs(tensors, [prefix], target_tensors()[0], fused, TOKENS, DRAFTS))
    vocabulary = head.vocabulary(torch.tensor([1, 39]))
    assert vocabulary.ids.tolist() == DRAFT_IDS.tolist()  # its own head has no row for 1
    expected = tensors["lm_head.weight"] @ rms_norm(outputs[2], tensors["norm.weight"])
    torch.testing.assert_close(head.logits(outputs[2], vocabulary), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_a_layer_for_each_step(tmp_path: Path, layout: str, num_steps: int) -> None:
    config, tensors = several_steps(layout, num_steps)
    head = load(write_head(tmp_path, config, tensors))
    features = random_features(head.config.feature_size)
    fused = list(features) if layout == "eagle" else [tensors["fc.weight"] @ row for row in features]
    prefixes = [f"layers.{step}." for step in range(num_steps)]
    expected = draft_outputs(tensors, prefixes, target_tensors()[0], fused, TOKENS, DRAFTS)
    assert_close(chain(head, features), expected)


def test_features_that_a_config_names() -> None:
    def layers(**more: Any) -> tuple[int, ...]:
        from specgrammar.spec.eagle.config import EagleConfig

        return EagleConfig.from_dict(eagle3()[0] | more, NUM_TARGET_LAYERS).feature_layers

    assert layers() == (2, 6, 9)
    assert layers(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 5, 10]}) == (2, 6, 11)
    assert layers(feature_layers=[3, -1]) == (3, -1)


@pytest.mark.parametrize("maker", [eagle1, eagle3, lambda: several_steps("eagle3", 2)])
def test_saved_heads_come_back(tmp_path: Path, maker: Any) -> None:
    config, tensors = maker()
    tensors.pop("lm_head.weight", None)
    tensors.pop("embed_tokens.weight", None)
    head = load(write_head(tmp_path / "a", config, tensors))
    save_head(tmp_path / "b", head, torch.float32)
    again = load(tmp_path / "b")
    assert again.config == head.config
    assert again.draft_ids.tolist() == head.draft_ids.tolist()
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    # The file's names are the published ones.
    stored = set(load_names(tmp_path / "b"))
    assert stored == {name for name in tensors if name != "t2d"}


def load_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as stored:
        return list(stored.keys())


def test_the_targets_head_gives_rows_for_any_ids(tmp_path: Path) -> None:
    config, tensors = eagle3()
    del tensors["lm_head.weight"]
    head = load(write_head(tmp_path, config, tensors))
    vocabulary = head.vocabulary(torch.tensor([38, 1, 39, 38]))
    assert vocabulary.ids.tolist() == sorted({*DRAFT_IDS.tolist(), 1, 38})
    torch.testing.assert_close(vocabulary.rows, target_tensors()[1][vocabulary.ids])


def changed(tensors: Tensors, **new: Tensor | None) -> Tensors:
    found = tensors | {name: value for name, value in new.items() if value is not None}
    return {name: value for name, value in found.items() if name not in new or new[name] is not None}


def _broken() -> list[tuple[str, dict[str, Any], Tensors, list[str]]]:
    config, tensors = eagle3()
    first = eagle1()
    offsets = tensors["d2t"]
    return [
        (
            "missing",
            config,
            changed(tensors, **{"fc.weight": None}),
            ["model.safetensors", "missing", "fc.weight"],
        ),
        ("unknown", config, changed(tensors, more=torch.ones(1)), ["unknown", "more"]),
        (
            "shape",
            config,
            changed(tensors, **{"midlayer.mlp.up_proj.weight": torch.ones(3, 2)}),
            ["midlayer.mlp.up_proj.weight", "[3, 2]", "[24, 16]"],
        ),
        (
            "rows",
            config,
            changed(tensors, **{"lm_head.weight": torch.ones(4, 16)}),
            ["lm_head.weight", "[4, 16]"],
        ),
        ("no d2t", config, changed(tensors, d2t=None), ["d2t is missing", "10 of 40"]),
        ("short d2t", config, changed(tensors, d2t=offsets[:4].clone()), ["d2t", "[4]", "[10]"]),
        ("d2t beyond", config, changed(tensors, d2t=offsets + 1), ["d2t", "[0, 40)"]),
        ("d2t twice", config, changed(tensors, d2t=-torch.arange(10)), ["d2t", "each once"]),
        ("layout", config | {"draft_vocab_size": None}, first[1], ["missing for the layout 'eagle3'"]),
        ("width", first[0] | {"hidden_size": 32}, first[1], ["embed_tokens.weight", "[40, 16]", "[40, 32]"]),
        (
            "other",
            first[0] | {"vocab_size": 41},
            changed(first[1], **{"embed_tokens.weight": None}),
            ["[41, 16]"],
        ),
    ]


@pytest.mark.parametrize("config, tensors, words", [pytest.param(*b[1:], id=b[0]) for b in _broken()])
def test_broken_weights_are_named(
    tmp_path: Path, config: dict[str, Any], tensors: Tensors, words: list[str]
) -> None:
    folder = write_head(tmp_path, config, {name: t.contiguous() for name, t in tensors.items()})
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"head_dim": 5}, "head_dim"),
        ({"draft_vocab_size": 41}, "draft_vocab_size"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"feature_layers": []}, "feature_layers"),
        ({"feature_layers": [-2]}, "feature_layers[0]"),
        ({"intermediate_size": "24"}, "intermediate_size"),
    ],
)
def test_impossible_configs_are_named(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    config, tensors = eagle3()
    config = {name: value for name, value in (config | changes).items() if value is not None}
    folder = write_head(tmp_path, config, tensors)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        load(folder)
    assert word in str(caught.value)


def test_a_config_without_features_needs_a_deep_target(tmp_path: Path) -> None:
    folder = write_head(tmp_path, *eagle3())
    with pytest.raises(ConfigError, match="num_target_layers"):
        load(folder, num_target_layers=5)


def test_files_that_are_not_there_or_not_readable(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="JSON object"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(eagle1()[0]))
    with pytest.raises(ModelError, match="holds no weights"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="table of tensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights either")
    with pytest.raises(ModelError, match="cannot be read"):
        load(tmp_path)
