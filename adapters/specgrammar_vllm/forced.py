"""Drafts out of what a grammar forces, behind those of vLLM's proposer.

A proposer is not shown grammars, and the scheduler is: what has to follow a request's drafts is added here,
between the proposer and the next schedule. They are drafts like any other: the target verifies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.spec.spelling import ForcedRun, LearntSpelling

_OUR_PROPOSER = "specgrammar_vllm.Proposer"
_CHOOSING_METHODS = ("ngram", "suffix")
"""vLLM's methods whose drafts are chosen and not drawn, so that none has a probability."""


class RunningRequest(Protocol):
    """vLLM's `Request`, as far as it is read here."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output, not empty."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output so far."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens of the output."""
        ...


class Force(NamedTuple):
    """How to make drafts of what a request's grammar forces.

    Attributes:
        spelling: spells as the target does.
        last_token: the last committed one.
        num_drafts: most drafts in all.
    """

    spelling: LearntSpelling
    last_token: int
    num_drafts: int

    def draft(self, drafts: Sequence[int], text: bytes) -> ForcedRun:
        """Spell a text that has to follow other drafts, fewer than `num_drafts`."""
        return self.spelling.draft(drafts, self.last_token, text, self.num_drafts - len(drafts))


class ForcedDrafts:
    """Makes them for all requests, and learns how the target spells.

    Attributes:
        spelling: what was learnt.
    """

    def __init__(self, vocabulary: Vocabulary, max_drafts: int) -> None:
        """Nothing is learnt yet.

        Args:
            vocabulary: the target's, with the tokenizer's `encode`.
            max_drafts: most drafts of a request in one step, vLLM's `num_speculative_tokens`.
        """
        self.spelling: LearntSpelling = LearntSpelling(vocabulary)
        self._max_drafts = max_drafts

    def behind(self, request: RunningRequest) -> Force:
        """For a request as it stands; behind its drafts the target adds a token of its own."""
        num_drafts = min(self._max_drafts, request.max_tokens - request.num_output_tokens - 1)
        return Force(self.spelling, request.all_token_ids[-1], num_drafts)


def forces_drafts(asked: bool | None, speculative: Any, *, async_scheduling: bool) -> bool:
    """Whether forced drafts are added: what the option says, by default wherever they can be.

    Args:
        asked: the option `forced_drafts`.
        speculative: vLLM's `SpeculativeConfig`, or None.
        async_scheduling: the next step is scheduled before this one's tokens are known.

    Raises:
        ConfigError: they were asked for and cannot be added.
    """
    if asked is False:
        return False
    if speculative is None:
        obstacle = (
            "without speculative_config vLLM verifies no drafts; for forced drafts alone pass the method "
            f"'custom_class' with the model {_OUR_PROPOSER!r} and the algorithm 'none'"
        )
    elif async_scheduling:
        obstacle = "with async_scheduling the next step is scheduled before this one's tokens are known"
    elif speculative.method not in (*_CHOOSING_METHODS, "custom_class"):
        obstacle = (
            f"the method {speculative.method!r} may verify its drafts by their probabilities, and forced "
            "drafts have none"
        )
    else:  # another's proposer may have probabilities; whoever asks for forced drafts has looked that up
        return asked or speculative.method in _CHOOSING_METHODS or speculative.model == _OUR_PROPOSER
    if asked:
        raise ConfigError(f"specgrammar: forced_drafts: {obstacle}")
    return False
