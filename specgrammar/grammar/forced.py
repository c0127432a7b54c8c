"""Spelling what a grammar forces: from the only text that may follow to draft tokens.

Forced text has several tokenisations, and which of them the target would choose nobody knows before it is
asked. As drafts that costs nothing but nodes: the target verifies them like any other. The best guess is the
tokenizer's own spelling of the text behind the last token, since that is what models were trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from specgrammar.protocols.grammar import Vocabulary

_MOST_REMEMBERED = 65_536
"""Spellings that are kept: the keys and separators of a few thousand schemas, about 200 bytes each."""


class Speller:
    """Spells text with a vocabulary's tokens. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Use the vocabulary's own tokenizer; without one the longest token that fits comes first."""
        self._vocabulary = vocabulary
        hidden = vocabulary.special_ids | set(vocabulary.stop_ids)
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text and token not in hidden:
                self._ids.setdefault(text, token)
        self._longest = max(map(len, self._ids), default=0)
        self.spell: Callable[[int, bytes], tuple[int, ...]] = lru_cache(maxsize=_MOST_REMEMBERED)(self._spell)

    def _spell(self, last_token: int, text: bytes) -> tuple[int, ...]:
        """Tokens that spell `text` behind `last_token`, or the beginning of it that can be spelt.

        A text that ends inside a character is spelt up to that character.
        """
        before = self._vocabulary.tokens[last_token]
        tokens = self._as_the_tokenizer(before, text)
        if tokens is None:  # it would have joined the two, which the target did not
            tokens = self._as_the_tokenizer(b"", text)
        return self._longest_first(text) if tokens is None else tokens

    def _as_the_tokenizer(self, before: bytes, text: bytes) -> tuple[int, ...] | None:
        """How it spells `text` behind `before`; None where it cannot be asked or no token ends between them."""
        if self._vocabulary.encode is None:
            return None
        try:
            tokens = self._vocabulary.encode((before + _whole(text)).decode())
        except UnicodeDecodeError:  # a token before ended inside a character
            return None
        length = 0
        for index, token in enumerate(tokens):
            if length == len(before):
                return tuple(tokens[index:])
            if self._vocabulary.tokens[token] not in self._ids:
                return None
            length += len(self._vocabulary.tokens[token])
        return () if length == len(before) else None

    def _longest_first(self, text: bytes) -> tuple[int, ...]:
        tokens: list[int] = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            token = next((self._ids[text[:n]] for n in lengths if text[:n] in self._ids), None)
            if token is None:
                break
            tokens.append(token)
            text = text[len(self._vocabulary.tokens[token]) :]
        return tuple(tokens)


def _whole(text: bytes) -> bytes:
    """A text without the beginning of a character at its end."""
    for num_bytes in range(1, min(4, len(text)) + 1):
        byte = text[-num_bytes]
        if byte >= 0xC0:  # begins a character of 2 to 4 bytes
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return text if num_bytes == length else text[:-num_bytes]
        if byte < 0x80:
            break
    return text
