"""The vocabulary of a Hugging Face tokenizer as grammars need it: the bytes behind every id.

Two families of fast tokenizers keep all bytes of a text and are supported: byte-level BPE (GPT-2's map from
bytes to printable characters) and SentencePiece-like vocabularies (`▁` for a space, `<0x0A>` for a byte).
A tokenizer that loses bytes (WordPiece, for one) is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from specgrammar.errors import ModelError
from specgrammar.protocols.grammar import Vocabulary

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
"""Tokens that end an assistant's turn; some checkpoints do not list theirs as an end of sequence."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_of(
    tokenizer: PreTrainedTokenizerBase, model_vocab_size: int | None = None, *, stop_ids: Iterable[int] = ()
) -> Vocabulary:
    """Read the bytes, stop ids and special ids out of a fast tokenizer.

    `Vocabulary.encode` spells its text exactly, unless the tokenizer has no token for one of its bytes
    (SmolLM2's lacks six control characters): such bytes are left out.

    Args:
        tokenizer: a fast (Rust) tokenizer.
        model_vocab_size: columns of the model's logits; ids at or above it cannot be produced and are cut.
        stop_ids: ids that end a sequence for the model (its generation config), beside the tokenizer's own
            end-of-sequence and end-of-turn tokens.

    Raises:
        ModelError: the ids cannot be turned into bytes, or nothing ends a sequence.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(
            f"{type(tokenizer).__name__} is not a fast tokenizer, so its ids cannot be turned into bytes; "
            "use a model that comes with a tokenizer.json"
        )
    described: dict[str, Any] = json.loads(backend.to_str())
    to_bytes = _byte_rule(described)
    pieces = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    size = max(pieces.values()) + 1
    if model_vocab_size is not None:
        size = min(size, model_vocab_size)
    special = {i for i, token in added.items() if token.special}
    special.add(pieces.get(described["model"].get("unk_token"), -1))
    named = [token for token in (tokenizer.eos_token, *_TURN_ENDS) if isinstance(token, str)]
    ends = {i for i in (*stop_ids, *(pieces.get(token, -1) for token in named)) if 0 <= i < size}
    if not ends:
        raise ModelError("neither the tokenizer nor the model's generation config names an end-of-sequence id")
    tokens = [b""] * size
    unused = set(range(size))
    for piece, i in pieces.items():
        if i < size:
            unused.discard(i)
            tokens[i] = added[i].content.encode() if i in added else to_bytes(piece)
    specials = frozenset(i for i in special | unused | ends if 0 <= i < size)
    for i in specials:
        tokens[i] = b""
    return Vocabulary(tuple(tokens), tuple(sorted(ends)), specials, _encoder(described))


def _byte_rule(described: dict[str, Any]) -> Callable[[str], bytes]:
    """How the bytes of one vocabulary entry are found, by what the tokenizer's decoder does."""
    steps = list(_steps(described["decoder"]))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        byte_of = _gpt2_bytes()

        def byte_level(piece: str) -> bytes:
            found = [byte_of.get(character) for character in piece]
            # Like the decoder, take an entry with a character outside the map literally.
            return piece.encode() if None in found else bytes([b for b in found if b is not None])

        return byte_level
    replaces_space = any(step["type"] == "Replace" and step["pattern"] == {"String": "▁"} for step in steps)
    if "Metaspace" in kinds or replaces_space:
        return _sentencepiece_bytes
    raise ModelError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is neither byte-level nor "
        "SentencePiece-like, so its ids cannot be turned into bytes; use a model with a byte-level BPE or "
        "SentencePiece tokenizer"
    )


def _steps(part: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, with sequences opened."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for key in ("normalizers", "pretokenizers", "decoders"):
        for inner in part.get(key, ()):
            yield from _steps(inner)


def _sentencepiece_bytes(piece: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


def _gpt2_bytes() -> dict[str, int]:
    """GPT-2's map, inverted: printable Latin-1 stands for itself, the other bytes follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _encoder(described: dict[str, Any]) -> Callable[[str], list[int]]:
    """Tokenise exactly the text: no special tokens, not even where it spells one, and no leading space."""
    plain = json.loads(json.dumps(described))
    plain["truncation"] = plain["padding"] = plain["post_processor"] = None
    for step in [*_steps(plain["normalizer"]), *_steps(plain["pre_tokenizer"])]:
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step["type"] == "Prepend":
            step["prepend"] = ""
        elif step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
    exact: Tokenizer = Tokenizer.from_str(json.dumps(plain))
    exact.encode_special_tokens = True
    return lambda text: list(exact.encode(text, add_special_tokens=False).ids)
