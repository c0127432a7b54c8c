"""A random model with a byte-level tokenizer in a folder, as `--model` takes it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.transformers_adapter.tiny import random_model

_MERGES = [("a", "b"), ("ab", "ab"), ("{", '"'), ('"', ":")]


def write_tiny_model(folder: Path) -> Path:
    """All 256 bytes, four merged tokens, and one token that is both start and end."""
    pieces = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in _MERGES)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, _MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    wrapped.save_pretrained(folder)
    model = random_model(
        "llama",
        vocab_size=len(pieces) + 3,  # padded columns
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    model.save_pretrained(folder)
    return folder
