"""Gates as users would write them, and what each means said once more without states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrammar.grammar.gate import Markers
from specgrammar.protocols.gate import GrammarGate
from specgrammar.testing.toys import VOCABULARY


@dataclass(frozen=True)
class TextGate:
    """Opens where a text is complete, however it is spelled; the state is the end of the text so far."""

    text: bytes

    def start(self, _prompt_tokens: Sequence[int]) -> bytes:
        """The prompt does not count."""
        return b""

    def step(self, state: bytes, token: int) -> bytes:
        """The text itself once it was complete, which is no end that can be reached otherwise."""
        behind = state + VOCABULARY.tokens[token]
        return self.text if self.text in behind else behind[max(0, len(behind) - len(self.text) + 1) :]

    def is_open(self, state: bytes) -> bool:
        """Whether the text was complete."""
        return state == self.text


@dataclass(frozen=True)
class BlockGate:
    """Opens where as many blocks were ended as begun; begun and ended by one id each, in the prompt, too."""

    begin: int
    end: int

    def start(self, prompt_tokens: Sequence[int]) -> tuple[int, bool]:
        """Blocks that are open, and whether the grammar has begun; never with the output."""
        state = (0, False)
        for token in prompt_tokens:
            state = (self.step(state, token)[0], False)
        return state

    def step(self, state: tuple[int, bool], token: int) -> tuple[int, bool]:
        """One more or one less."""
        depth = state[0] + (token == self.begin) - (token == self.end and state[0] > 0)
        return depth, token == self.end and state[0] == 1

    def is_open(self, state: tuple[int, bool]) -> bool:
        """Whether the last block was ended."""
        return state[1]


@dataclass(frozen=True)
class SpelledGate:
    """Opens where a text is complete, which the grammar has to begin with; carries how it was spelled.

    Only spellings from a token's begin to a token's end count. The state is the spelling so far.
    """

    text: bytes

    def start(self, _prompt_tokens: Sequence[int]) -> tuple[int, ...]:
        """The prompt does not count."""
        return ()

    def step(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The longest spelling of a beginning of the text that the output ends with."""
        tokens = (*state, token)
        beginnings = (tokens[i:] for i in range(len(tokens) + 1))
        return next(
            one for one in beginnings if self.text.startswith(VOCABULARY.text(one)) and all(map(is_text, one))
        )

    def is_open(self, state: tuple[int, ...]) -> bool:
        """Whether the text is complete."""
        return VOCABULARY.text(state) == self.text

    @property
    def starts(self) -> list[tuple[int, ...]]:
        """All spellings."""
        return spellings(self.text)

    def carried(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The spelling."""
        return state


def is_text(token: int) -> bool:
    return bool(VOCABULARY.tokens[token])


def spellings(text: bytes) -> list[tuple[int, ...]]:
    """All ways to spell a text."""
    if not text:
        return [()]
    firsts = [i for i, token in enumerate(VOCABULARY.tokens) if token and text.startswith(token)]
    return [(i, *rest) for i in firsts for rest in spellings(text[len(VOCABULARY.tokens[i]) :])]


def begin_of(start: tuple[int, ...] | GrammarGate, prompt: Sequence[int], output: Sequence[int]) -> int | None:
    """Where in an output the grammar begins to read, None if it does not: the meaning of `grammar_start`."""
    if isinstance(start, tuple):
        return begin_of(Markers(after=(start,)), prompt, output) if start else 0
    if isinstance(start, Markers) and start.in_prompt and ends_block(start, tuple(prompt)):
        return 0
    for end in range(1, len(output) + 1):
        begin = _begins_behind(start, prompt, tuple(output[:end]))
        if begin is not None:
            return begin
    return None


def _begins_behind(start: GrammarGate, prompt: Sequence[int], output: tuple[int, ...]) -> int | None:
    """Where it begins if what opens it is complete with the last token."""
    if isinstance(start, Markers):
        complete = [marker for marker in start.after + start.at if output[-len(marker) :] == marker]
        longest = max(complete, key=len, default=None)
        return None if longest is None else len(output) - len(longest) * (longest in start.at)
    if isinstance(start, TextGate):
        return len(output) if start.text in VOCABULARY.text(output) else None
    if isinstance(start, SpelledGate):
        tails = [i for i in range(len(output)) if output[i:] in start.starts]
        return tails[0] if tails else None
    assert isinstance(start, BlockGate)
    depths = [0]
    for token in (*prompt, *output):
        depths.append(depths[-1] + 1 if token == start.begin else max(0, depths[-1] - (token == start.end)))
    return len(output) if depths[-2:] == [1, 0] else None


def ends_block(start: Markers, prompt: tuple[int, ...]) -> bool:
    """Whether the last marker that is complete in a prompt is one that ends a block."""
    for end in range(len(prompt), 0, -1):
        complete = [m for m in start.after + start.resets if prompt[max(0, end - len(m)) : end] == m]
        if complete:
            return max(complete, key=len) in start.after
    return False
