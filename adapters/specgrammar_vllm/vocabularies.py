"""The vocabulary behind vLLM's tokenizer, with the stop ids of one request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from specgrammar.errors import ModelError
from specgrammar.protocols.grammar import Vocabulary


def as_vllm_reads_it(tokenizer: Any, vocab_size: int, stop_ids: Iterable[int]) -> Vocabulary:
    """As xgrammar's `TokenizerInfo.from_huggingface` reads it, which is what vLLM compiles for.

    Control tokens are text there for many models: `<|im_start|>` is legal inside a JSON string.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: columns of the model's logits; ids behind the tokenizer's are unused.
        stop_ids: what ends the request; where there is none, what xgrammar finds.

    Raises:
        ModelError: xgrammar cannot read it, or nothing ends a sequence.
    """
    import xgrammar

    try:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"xgrammar cannot read the tokenizer {type(tokenizer).__name__}: {error}") from error
    stops = set(stop_ids) or set(info.stop_token_ids)
    return _with_stops(Vocabulary(tuple(info.decoded_vocab), (), frozenset(info.special_token_ids)), stops)


def as_specgrammar_reads_it(tokenizer: Any, vocab_size: int, stop_ids: Iterable[int]) -> Vocabulary:
    """As every adapter of ours reads it: no control token is text.

    Args and errors are those of `as_vllm_reads_it`; by default what ends a turn ends the request.
    """
    from specgrammar_transformers.vocabulary import vocabulary_of

    found = vocabulary_of(tokenizer, vocab_size)
    unused = range(found.vocab_size, vocab_size)
    padded = dataclasses.replace(
        found,
        tokens=found.tokens + (b"",) * len(unused),
        special_ids=found.special_ids | frozenset(unused),
    )
    return _with_stops(padded, set(stop_ids) or set(found.stop_ids))


def _with_stops(vocabulary: Vocabulary, stop_ids: set[int]) -> Vocabulary:
    """The vocabulary with other stop ids; the former ones stay what they are, if not text then special."""
    stops = {token for token in stop_ids if 0 <= token < vocabulary.vocab_size}
    if not stops:
        raise ModelError("neither the tokenizer nor the request names an id that ends a sequence")
    tokens = tuple(b"" if i in stops else token for i, token in enumerate(vocabulary.tokens))
    return dataclasses.replace(
        vocabulary,
        tokens=tokens,
        stop_ids=tuple(sorted(stops)),
        special_ids=vocabulary.special_ids | stops,
    )
