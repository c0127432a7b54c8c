# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""Whose grammar a request has, and where it stands: ours at once, or ours behind sglang's reasoning gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.utils.token_sequence_matcher import TokenSequenceMatcher

from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import Vocabulary
from specgrammar_sglang.grammar import SglangGrammar


class ThinkEnd:
    """The gate (`protocols.gate.GrammarGate`) of a request that thinks: sglang's own matcher of the end."""

    def __init__(self, think_end_ids: Sequence[int], num_matched: int) -> None:
        """Stand where `num_matched` ids of the end were read."""
        self._matcher = TokenSequenceMatcher(think_end_ids)
        self._num_matched = num_matched

    def start(self, prompt_tokens: Sequence[int]) -> int:  # noqa: ARG002  # sglang has read it
        """Where the request stands."""
        return self._num_matched

    def step(self, state: int, token: int) -> int:
        """How much of the end is read behind a token."""
        return int(self._matcher.advance(state, token))

    def is_open(self, state: int) -> bool:
        """Whether all of it is."""
        return state == len(self._matcher)


def our_grammar(grammar: Any) -> SglangGrammar | None:
    """Our object, also behind a reasoning gate; None for anything else."""
    inner = grammar.grammar if isinstance(grammar, ReasonerGrammarObject) else grammar
    return inner if isinstance(inner, SglangGrammar) else None


def is_walked_by_us(grammar: Any) -> bool:
    """Whether `session_of` has a session for a request's grammar.

    Besides sglang's own grammars these have none: a request that thinks and has to stay within a budget or off
    some tokens (strict thinking), and one whose grammar covers the reasoning, too.
    """
    if grammar is None:
        return True
    if our_grammar(grammar) is None:
        return False
    if not isinstance(grammar, ReasonerGrammarObject):
        return True
    return not grammar.reasoning_in_grammar and not (grammar.enable_token_filter and grammar._is_thinking())


def session_of(grammar: Any, vocabulary: Vocabulary) -> GrammarSession | None:
    """What walks a request's tree; None where its grammar has ended, behind which nothing is restricted.

    Args:
        grammar: one that `is_walked_by_us`; None for a request without.
        vocabulary: the target's.
    """
    ours = our_grammar(grammar)
    if ours is None:
        return GrammarSession(vocabulary)
    if isinstance(grammar, ReasonerGrammarObject) and grammar._is_thinking():
        gate = ThinkEnd(grammar.think_end_ids, grammar._matched_think_end_tokens)
        return GrammarSession(vocabulary, ours.matcher, gate=gate)
    return None if ours.is_terminated() else ours.session
