"""`Cursor`: gate and matcher moved as one, with every step undoable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from specgrammar.grammar.calls import calls_of
from specgrammar.grammar.gate import Gate
from specgrammar.protocols.abilities import SupportsTreeFill
from specgrammar.protocols.grammar import GrammarMatcher, Vocabulary


class Cursor:
    """Where a request's grammar stands: before its gate the gate moves, behind it the matcher.

    Steps are speculative until `settle`: `undo` takes them back. Ids outside the vocabulary are illegal
    and reach neither gate nor matcher.
    """

    def __init__(self, matcher: GrammarMatcher, gate: Gate | None, vocabulary: Vocabulary) -> None:
        """Stand at the start; without a gate the grammar is engaged at once."""
        self.matcher = matcher
        self.walk_calls = calls_of(matcher)
        self.tree_filler = matcher if isinstance(matcher, SupportsTreeFill) else None
        self.gate = gate
        self._vocab_size = vocabulary.vocab_size
        self._gate_state = 0
        self._open_state = gate.open_state if gate is not None else 0
        self._trail: list[int] = []  # the gate's state before each step that is not settled

    @property
    def gate_state(self) -> int:
        """Where the gate stands."""
        return self._gate_state

    @property
    def engaged(self) -> bool:
        """Whether the grammar restricts what comes next."""
        return self._gate_state == self._open_state

    def step(self, token: int) -> bool:
        """Move over one token; False, and no move, where it is illegal."""
        if not 0 <= token < self._vocab_size:
            return False
        before = self._gate_state
        if before == self._open_state:
            if not self.matcher.accept(token):
                return False
        elif self.gate is not None:
            self._gate_state = self.gate.step(before, token)
        self._trail.append(before)
        return True

    def step_all(self, tokens: Sequence[int]) -> int:
        """Step until the first illegal token; returns how many steps were made, natively where engaged."""
        if self._gate_state == self._open_state:
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
                self._trail.append(self._open_state)
                return index
        return -1

    @property
    def num_steps(self) -> int:
        """Steps that are not settled."""
        return len(self._trail)

    def undo(self, num_steps: int) -> None:
        """Undo the last steps that are not settled, in one rollback of the matcher."""
        if not num_steps:
            return
        undone = self._trail[-num_steps:]
        del self._trail[-num_steps:]
        self._gate_state = undone[0]
        num_accepted = undone.count(self._open_state)
        if num_accepted:
            self.matcher.rollback(num_accepted)

    def settle(self) -> None:
        """Make all steps final."""
        self._trail.clear()

    def _accept_prefix(self, tokens: Sequence[int]) -> int:
        if tokens and (min(tokens) < 0 or max(tokens) >= self._vocab_size):
            tokens = tuple(takewhile(range(self._vocab_size).__contains__, tokens))
        num_accepted = self.matcher.accept_prefix(tokens)
        self._trail.extend([self._open_state] * num_accepted)
        return num_accepted
