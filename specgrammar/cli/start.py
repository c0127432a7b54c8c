"""`--grammar-after`, `--grammar-at` and `--grammar-reset`: from texts that open a grammar to their gate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from specgrammar.checks import check_text
from specgrammar.cli.prompts import Prompt
from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Markers

_FLAGS = ("grammar_after", "grammar_at", "grammar_reset")


def check_start(arguments: argparse.Namespace, prompts: Sequence[Prompt]) -> None:
    """Refuse, before a model is loaded, flags that mean nothing."""
    named = [f"--{flag.replace('_', '-')}" for flag in _FLAGS if getattr(arguments, flag)]
    for flag in _FLAGS:
        for text in getattr(arguments, flag):
            check_text(f"--{flag.replace('_', '-')}", text)
    if named and all(prompt.grammar is None for prompt in prompts):
        raise ConfigError(f"{named[0]}: there is no grammar that could begin; give one, or drop the flag")
    if arguments.grammar_reset and not arguments.grammar_after:
        raise ConfigError("--grammar-reset: there is no --grammar-after to look for in the prompt")


def start_of(arguments: argparse.Namespace, adapter: Any) -> Markers | None:
    """The gate in the ids of the adapter's tokenizer; None where no flag asks for one."""
    if not arguments.grammar_after and not arguments.grammar_at:
        return None
    before = adapter.encode_raw("")  # a BOS, where the tokenizer adds one

    def ids(texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        encoded = [adapter.encode_raw(text) for text in texts]
        return tuple(tuple(one[len(before) :] if one[: len(before)] == before else one) for one in encoded)

    return Markers(
        after=ids(arguments.grammar_after),
        at=ids(arguments.grammar_at),
        in_prompt=bool(arguments.grammar_reset),
        resets=ids(arguments.grammar_reset),
    )
