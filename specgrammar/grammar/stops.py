"""When a request ends: stop tokens, stop strings, and the token limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from specgrammar.checks import check_int, texts, token_ids
from specgrammar.protocols.grammar import Vocabulary

FinishReason = Literal["stop", "stop_string", "length", "error", "abort"]


@dataclass(frozen=True)
class StopRules:
    """The rules of one request; the first token that meets one is the last that is kept.

    Any collection of ids and of strings is taken; ConfigError for what is none.

    Attributes:
        stop_ids: ids that end the output, usually the vocabulary's; the stop token itself is kept in the
            ids and contributes nothing to the text.
        stop_strings: the text ends before the first occurrence of any of them; the token that completes it
            is the last one kept.
        max_new_tokens: most tokens to keep; None for no limit.
    """

    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_ids", frozenset(token_ids("stop_ids", self.stop_ids)))
        object.__setattr__(self, "stop_strings", texts("stop_strings", self.stop_strings))
        if self.max_new_tokens is not None:
            check_int("max_new_tokens", self.max_new_tokens, 1)

    @cached_property
    def _stop_bytes(self) -> tuple[bytes, ...]:
        return tuple(string.encode() for string in self.stop_strings)

    def finish_reason(self, output: Sequence[int], vocabulary: Vocabulary) -> FinishReason | None:
        """Whether the newest token of `output` (not empty) ends the request, and why."""
        if output[-1] in self.stop_ids:
            return "stop"
        if self._stop_bytes and self._completes_stop_string(output, vocabulary):
            return "stop_string"
        if self.max_new_tokens is not None and len(output) >= self.max_new_tokens:
            return "length"
        return None

    def text(self, output: Sequence[int], vocabulary: Vocabulary) -> str:
        """The text of an output: special ids and the stop token dropped, cut before the first stop string.

        Bytes that are not UTF-8 (a limit may cut a character in two) become U+FFFD.
        """
        ends = bool(output) and output[-1] in self.stop_ids
        text = vocabulary.text(output[:-1] if ends else output)
        cuts = [cut for string in self._stop_bytes if (cut := text.find(string)) >= 0]
        return text[: min(cuts, default=len(text))].decode(errors="replace")

    def _completes_stop_string(self, output: Sequence[int], vocabulary: Vocabulary) -> bool:
        """Look only at the bytes that the newest token can have completed a stop string in."""
        num_bytes = len(vocabulary.tokens[output[-1]]) + max(map(len, self._stop_bytes)) - 1
        tail: list[bytes] = []
        for token in reversed(output):
            if num_bytes <= 0:
                break
            tail.append(vocabulary.tokens[token])
            num_bytes -= len(tail[-1])
        text = b"".join(reversed(tail))
        return any(string in text for string in self._stop_bytes)
