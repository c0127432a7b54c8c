"""`LearntSpelling`: forced text as the target spells it, as far as it has been seen to.

A model has habits that its tokenizer does not know: some begin JSON with `{` where the tokenizer says `{"`.
Where the target keeps a forced text but spells it otherwise, its way is tried first the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specgrammar.grammar.forced import Speller
from specgrammar.protocols.grammar import Vocabulary

_BYTES_PER_TOKEN = 16
"""Forced text that is looked at for each token that is asked for: several times what one spells on average."""

_MOST_LEARNT = 4096
"""Habits that are kept, the newest: most of a model's show within a few requests."""


class ForcedRun(NamedTuple):
    """A chain of drafts that spells forced text.

    Attributes:
        behind: the drafts that it continues.
        last_token: the last of them, or the last committed token.
        text: what is forced behind it.
        chain: tokens that spell `text` or the beginning of it.
    """

    behind: tuple[int, ...]
    last_token: int
    text: bytes
    chain: list[int]


class LearntSpelling:
    """Spells forced text behind a token; replicas that see the same commits spell alike.

    Attributes:
        num_respelled: how often the target kept a forced text and spelt it otherwise.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Spell as the tokenizer does."""
        self.num_respelled: int = 0
        self._vocabulary = vocabulary
        self._speller = Speller(vocabulary)
        self._learnt: dict[tuple[int, int], int] = {}  # last token and the tokenizer's next one: the target's

    def spell(self, last_token: int, text: bytes, num_tokens: int) -> list[int]:
        """At most `num_tokens` tokens that spell `text`, or the beginning of it, behind `last_token`."""
        spelt: list[int] = []
        rest = self._usual(last_token, text, num_tokens)
        while rest and len(spelt) < num_tokens:
            token = rest.pop(0)
            habit = self._learnt.get((last_token, token))
            if habit is not None and text.startswith(self._vocabulary.tokens[habit]):
                token = habit
                rest = self._usual(token, text[len(self._vocabulary.tokens[token]) :], num_tokens)
            spelt.append(token)
            text = text[len(self._vocabulary.tokens[token]) :]
            last_token = token
        return spelt

    def draft(self, behind: Sequence[int], last_token: int, text: bytes, num_tokens: int) -> ForcedRun:
        """A run of at most `num_tokens` drafts behind others, to be learnt from when its tokens are committed.

        Args:
            behind: drafts that come first.
            last_token: the last committed token.
            text: what is forced behind them, not empty.
            num_tokens: at least 1.
        """
        last = behind[-1] if behind else last_token
        return ForcedRun(tuple(behind), last, text, self.spell(last, text, num_tokens))

    def learn(self, run: ForcedRun, committed: Sequence[int]) -> None:
        """Look at what the target made of a run.

        Args:
            run: what `draft` gave.
            committed: what was committed from the first draft that came before it on.
        """
        depth = len(run.behind)
        if tuple(committed[:depth]) != run.behind:
            return
        last_token, text = run.last_token, run.text
        for token, chosen in zip(run.chain, committed[depth:], strict=False):
            if token != chosen:
                self._respelt(last_token, text, chosen)
                return
            text = text[len(self._vocabulary.tokens[token]) :]
            last_token = token

    def _respelt(self, last_token: int, text: bytes, chosen: int) -> None:
        if not 0 <= chosen < self._vocabulary.vocab_size:
            return
        said = self._vocabulary.tokens[chosen]
        if not said or not (text.startswith(said) or said.startswith(text)):
            return
        self.num_respelled += 1
        usual = self._usual(last_token, text, 1)[:1]
        if usual == [chosen]:
            self._learnt.pop((last_token, chosen), None)  # the habit was none
        elif usual and text.startswith(said):
            self._learnt.pop((last_token, usual[0]), None)
            self._learnt[last_token, usual[0]] = chosen
            if len(self._learnt) > _MOST_LEARNT:
                del self._learnt[next(iter(self._learnt))]

    def _usual(self, last_token: int, text: bytes, num_tokens: int) -> list[int]:
        """The tokenizer's spelling of a text, or of its beginning: some tokens more than are asked for.

        A long text would be spelt anew by each step that is inside it.
        """
        return list(self._speller.spell(last_token, text[: _BYTES_PER_TOKEN * (num_tokens + 4)]))
