"""`Cursor`: gate and matcher moved as one, with every step undoable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from specgrammar.errors import MatcherError
from specgrammar.grammar.calls import CallsOver, calls_of
from specgrammar.grammar.gate_checks import TrustedGate
from specgrammar.protocols.abilities import NativeCalls, SupportsForcedTokens, SupportsNativeCalls
from specgrammar.protocols.grammar import GrammarMatcher, Vocabulary


class Cursor:
    """Where a request's grammar stands: before its gate the gate moves, behind it the matcher.

    The step that opens the gate moves the matcher over what the gate carries, all at once. Steps are
    speculative until `settle`: `undo` takes them back. Ids outside the vocabulary are illegal and reach
    neither gate nor matcher.

    Attributes:
        engaged: whether the grammar restricts what comes next.
        native_calls: tells how native code moves the matcher; None where only Python can.
        gate_state: where the gate stands while it is not engaged.
    """

    def __init__(
        self,
        matcher: GrammarMatcher,
        gate: TrustedGate | None,
        vocabulary: Vocabulary,
        prompt_tokens: Sequence[int] = (),
    ) -> None:
        """Stand before the output; without a gate the grammar is engaged at once.

        Raises what gate and matcher raise.
        """
        self.matcher = matcher
        self.walk_calls: CallsOver = calls_of(matcher)
        self._native: SupportsNativeCalls | None = matcher if isinstance(matcher, SupportsNativeCalls) else None
        self.native_calls: Callable[[], NativeCalls | None] = (
            _none if self._native is None else self._native.native_calls
        )
        self._forcing: SupportsForcedTokens | None = (
            matcher if isinstance(matcher, SupportsForcedTokens) else None
        )
        self.gate = gate
        self.engaged: bool = True
        self.gate_state: Any = None  # the gate's own
        self._vocab_size = vocabulary.vocab_size
        # Steps that are not settled: the gate's state before each of its own, and behind them the matcher's.
        self._gate_trail: list[Any] = []
        self._num_accepted = 0
        self._num_carried = 0
        if gate is not None:
            self.gate_state = gate.start(prompt_tokens)
            self.engaged = gate.is_open(self.gate_state)
            if self.engaged:
                self._accept_carried(self.gate_state)

    def step(self, token: int) -> bool:
        """Move over one token; False, and no move, where it is illegal."""
        if not 0 <= token < self._vocab_size:
            return False
        if not self.engaged:
            self._step_gate(token)
        elif self.matcher.accept(token):
            self._num_accepted += 1
        else:
            return False
        return True

    def step_all(self, tokens: Sequence[int]) -> int:
        """Step until the first illegal token; returns how many steps were made, natively where engaged."""
        if self.engaged:
            return self._accept_prefix(tokens)
        for index, token in enumerate(tokens):
            if self.engaged:
                return index + self._accept_prefix(tokens[index:])
            if not self.step(token):
                return index
        return len(tokens)

    def step_first(self, tokens: Sequence[int]) -> int:
        """Move over the first legal one of some tokens; returns its index, -1 where none is."""
        engaged, accept = self.engaged, self.matcher.accept
        for index, token in enumerate(tokens):
            if not engaged:
                if self.step(token):
                    return index
            elif 0 <= token < self._vocab_size and accept(token):
                self._num_accepted += 1
                return index
        return -1

    def moved(self, tokens: Sequence[int]) -> None:
        """Native code moved the matcher over some tokens."""
        assert self._native is not None
        self._native.native_moved(tokens)
        self._num_accepted += len(tokens)

    @property
    def num_steps(self) -> int:
        """Steps that are not settled."""
        return len(self._gate_trail) + self._num_accepted

    def undo(self, num_steps: int) -> None:
        """Undo the last steps that are not settled, in one rollback of the matcher."""
        num_back = min(num_steps, self._num_accepted)
        self._num_accepted -= num_back
        if num_steps > num_back:
            begin = len(self._gate_trail) - (num_steps - num_back)
            self.gate_state = self._gate_trail[begin]
            del self._gate_trail[begin:]
            if self.engaged:
                self.engaged = False
                num_back += self._num_carried
        if num_back:
            self.matcher.rollback(num_back)

    def forced_text(self) -> bytes:
        """The only text with which the grammar can go on; empty where it has a choice or has not begun."""
        return self._forcing.forced_text() if self.engaged and self._forcing is not None else b""

    def settle(self) -> None:
        """Make all steps final."""
        self._gate_trail.clear()
        self._num_accepted = 0

    @contextmanager
    def begun(self, gate_state: Any) -> Iterator[None]:
        """Inside, the matcher stands where the grammar begins behind an open state of the gate."""
        num_carried = self._accept_carried(gate_state)
        try:
            yield
        finally:
            if num_carried:
                self.matcher.rollback(num_carried)

    def _step_gate(self, token: int) -> None:
        assert self.gate is not None
        before = self.gate_state
        behind: Any = self.gate.step(before, token)
        if self.gate.is_open(behind):
            self._num_carried = self._accept_carried(behind)
            self.engaged = True
        self.gate_state = behind
        self._gate_trail.append(before)

    def _accept_carried(self, gate_state: Any) -> int:
        """Move the matcher over what the gate carries; returns how many tokens that is."""
        assert self.gate is not None
        carried = self.gate.carried(gate_state)
        num_accepted = self.matcher.accept_prefix(carried) if carried else 0
        if num_accepted < len(carried):
            self.matcher.rollback(num_accepted)
            raise MatcherError(
                f"the grammar backend refuses {list(carried)} where its grammar begins; it took them before"
            )
        return num_accepted

    def _accept_prefix(self, tokens: Sequence[int]) -> int:
        if tokens and (min(tokens) < 0 or max(tokens) >= self._vocab_size):
            tokens = tuple(takewhile(range(self._vocab_size).__contains__, tokens))
        num_accepted = self.matcher.accept_prefix(tokens)
        self._num_accepted += num_accepted
        return num_accepted


def _none() -> None:
    """For a matcher that only Python can move."""
