"""A Llama-shaped GGUF file as an ordinary Hugging Face folder.

Weights are dequantised to float32, which holds every value of the quantised formats exactly, so the folder's
model is the file's model to the bit. llama.cpp stores the rows of the query and key projections interleaved
for its rotary embedding; they are put back into the order that transformers rotates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.constants import TokenType
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specgrammar.errors import ModelError

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama_gguf(source: Path, folder: Path, on_tensor: Callable[[int], object]) -> None:
    """Write config, weights, tokenizer and chat template of a GGUF file into `folder`.

    Args:
        source: a GGUF file of architecture `llama` with a `smollm` byte-level BPE tokenizer.
        folder: an existing, empty folder.
        on_tensor: called with the number of float32 bytes of each tensor that was converted.

    Raises:
        ModelError: the file is of another architecture or tokenizer.
    """
    reader = GGUFReader(source)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    kind = (
        fields.get("general.architecture"),
        fields.get("tokenizer.ggml.model"),
        fields.get("tokenizer.ggml.pre"),
    )
    if kind != ("llama", "gpt2", "smollm"):
        raise ModelError(
            f"{source}: architecture and tokenizer are {kind}; expected ('llama', 'gpt2', 'smollm')"
        )
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        name, part = _hf_name(tensor.name)
        weights[name] = _unpermuted(values, heads[part]) if part in heads else np.ascontiguousarray(values)
        on_tensor(values.nbytes)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _tokenizer(fields).save_pretrained(folder)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return fields[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("rope.dimension_count"),
        "max_position_embeddings": llama("context_length"),
        "rms_norm_eps": float(llama("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(llama("rope.freq_base"))},
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
    }


def _hf_name(name: str) -> tuple[str, str]:
    """The transformers name of a tensor, and which part of a block it is (empty outside of blocks)."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name], ""
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{suffix}", part


def _unpermuted(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of each head from (pair, half) order back to (half, pair) order."""
    rows, columns = weight.shape
    paired = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows, columns)


def _tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # llama.cpp's name for this pre-tokenizer is "smollm": every digit alone, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        token
        for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
        if kind == TokenType.CONTROL
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
