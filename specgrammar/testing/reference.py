"""`ReferenceBackend`: slow and plain, the model that other backends are tested against.

It parses bytes by the rules of `language.rules` (see `testing.earley`), and tries every token of the vocabulary
for a mask. States are immutable; the history is a list of them, so that a rollback is a pop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.language.frontend import rules_of
from specgrammar.language.schema_keywords import UNENFORCED
from specgrammar.protocols.grammar import BackendFacts, CompiledGrammar, GrammarSpec, Vocabulary
from specgrammar.testing.earley import EarleyParser, EarleySet


@dataclass(frozen=True, eq=False)
class ReferenceCompiled:
    """A `CompiledGrammar`: the rules themselves."""

    spec: GrammarSpec
    weakened: tuple[str, ...]
    parser: EarleyParser


class ReferenceMatcher:
    """A `GrammarMatcher` over immutable states."""

    def __init__(self, parser: EarleyParser, vocabulary: Vocabulary) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._history: list[EarleySet] = [parser.start]
        self._finished = False

    @property
    def finished(self) -> bool:
        """A stop token was accepted and not rolled back."""
        return self._finished

    def accept(self, token: int) -> bool:
        """See `GrammarMatcher.accept`."""
        state = self._after(token)
        if state is None:
            return False
        self._finished = token in self._vocabulary.stop_ids
        self._history.append(state)
        return True

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        """See `GrammarMatcher.accept_prefix`."""
        for num_accepted, token in enumerate(tokens):
            if not self.accept(token):
                return num_accepted
        return len(tokens)

    def rollback(self, num_tokens: int) -> None:
        """See `GrammarMatcher.rollback`."""
        if not 0 <= num_tokens < len(self._history):
            raise MatcherError(f"rollback({num_tokens}): {len(self._history) - 1} tokens were accepted")
        if num_tokens:
            del self._history[-num_tokens:]
            self._finished = False

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """See `GrammarMatcher.fill_bitmask`."""
        size, num_words = self._vocabulary.vocab_size, self._vocabulary.num_words
        if bitmask.dtype != np.int32 or bitmask.ndim != 2 or bitmask.shape[1] != num_words:
            raise MatcherError(
                f"the bitmask is {bitmask.dtype}{list(bitmask.shape)}; int32[rows, {num_words}] expected"
            )
        if not bitmask.flags.c_contiguous or not bitmask.flags.writeable:
            raise MatcherError("the bitmask has to be C-contiguous and writeable")
        if not 0 <= row < len(bitmask):
            raise MatcherError(f"row {row} is outside the bitmask's {len(bitmask)} rows")
        legal = np.zeros(32 * num_words, np.bool_)
        legal[:size] = [self._after(token) is not None for token in range(size)]
        bitmask[row] = np.packbits(legal, bitorder="little").view("<i4")
        if not legal.any():
            raise DeadEndError("nothing is legal here, not even a stop token")

    def fork(self) -> ReferenceMatcher:
        """See `GrammarMatcher.fork`."""
        copy = type(self)(self._parser, self._vocabulary)
        copy._history = self._history.copy()
        copy._finished = self._finished
        return copy

    def _after(self, token: int) -> EarleySet | None:
        """The state behind a token; None if it is illegal."""
        vocabulary, state = self._vocabulary, self._history[-1]
        if self._finished or not 0 <= token < vocabulary.vocab_size:
            return None
        if token in vocabulary.stop_ids:
            return state if state.accepts else None
        text = vocabulary.tokens[token]
        if token in vocabulary.special_ids or not text:
            return None
        for byte in text:
            after = self._parser.step(state, byte)
            if after is None:
                return None
            state = after
        return state


class ReferenceBackend:
    """A `GrammarBackend` for every kind; of grammar texts, EBNF.

    Attributes:
        matcher_class: what its matchers are; for a backend that differs from this one in its matchers alone.
    """

    api_version: Literal[1] = 1
    facts: BackendFacts = BackendFacts(
        max_rollback=None,
        thread_safe=True,
        grammar_syntaxes=frozenset({"ebnf"}),
        unenforced_keywords=UNENFORCED,
    )
    matcher_class: type[ReferenceMatcher] = ReferenceMatcher

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was built for."""
        return self._vocabulary

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        """See `GrammarBackend.compile`."""
        rules, weakened = rules_of(spec, self.facts)
        return ReferenceCompiled(spec, weakened, EarleyParser(rules))

    def matcher(self, compiled: CompiledGrammar) -> ReferenceMatcher:
        """See `GrammarBackend.matcher`."""
        if not isinstance(compiled, ReferenceCompiled):
            raise MatcherError(
                f"reference: the grammar was compiled by another backend ({type(compiled).__name__})"
            )
        return self.matcher_class(compiled.parser, self._vocabulary)
