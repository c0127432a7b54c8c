"""The vocabulary of sglang's target, as wide as its logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from specgrammar.protocols.grammar import Vocabulary
from specgrammar_transformers.vocabulary import vocabulary_of


def target_vocabulary(
    tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int] | int | None
) -> Vocabulary:
    """Read the tokenizer; columns of the logits behind its ids become unused ids, so that rows are sglang's.

    Args:
        tokenizer: a fast one.
        vocab_size: columns of the logits.
        eos_token_ids: what ends a sequence for the model, beside the tokenizer's own.

    Raises ModelError as `vocabulary_of` does.
    """
    stop_ids = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids or ())
    vocabulary = vocabulary_of(tokenizer, vocab_size, stop_ids=stop_ids)
    size = vocabulary.vocab_size
    return dataclasses.replace(
        vocabulary,
        tokens=vocabulary.tokens + (b"",) * (vocab_size - size),
        special_ids=vocabulary.special_ids | frozenset(range(size, vocab_size)),
    )
