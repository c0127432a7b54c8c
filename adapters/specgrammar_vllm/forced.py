"""Drafts out of what a grammar forces, behind those of vLLM's proposer.

A proposer is not shown grammars, and the scheduler is: what has to follow a request's drafts is added here,
between the proposer and the next schedule. They are drafts like any other: the target verifies them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.spec.spelling import ForcedRun, LearntSpelling

_log = logging.getLogger(__name__)

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
        num_drafts: most drafts that the grammar sees.
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

    def behind(self, request: RunningRequest, reasoning: Sequence[int]) -> Force:
        """For a request as it stands, behind drafts that its grammar does not see.

        The target adds a token of its own, for which there has to be room.
        """
        num_drafts = min(self._max_drafts, request.max_tokens - request.num_output_tokens - 1)
        last_token = reasoning[-1] if reasoning else request.all_token_ids[-1]
        return Force(self.spelling, last_token, num_drafts - len(reasoning))


def forced_drafts_of(
    vllm_config: Any, asked: bool | None, read_vocabulary: Callable[[], Vocabulary]
) -> ForcedDrafts | None:
    """What makes them; None where they are not wanted, and by default where they are not possible.

    Args:
        vllm_config: vLLM's `VllmConfig`.
        asked: the option `forced_drafts`.
        read_vocabulary: the target's, with `encode`; may raise ModelError.

    Raises:
        ConfigError, ModelError: they were asked for and cannot be made.
    """
    if asked is False:
        return None
    obstacle = _obstacle(vllm_config)
    if obstacle and asked:
        raise ConfigError(f"specgrammar: forced_drafts: {obstacle}")
    speculative = vllm_config.speculative_config
    if obstacle:
        return None
    # Another's proposer may have probabilities; whoever asks for forced drafts has looked that up.
    if not (asked or speculative.method in _CHOOSING_METHODS or speculative.model == _OUR_PROPOSER):
        return None
    try:
        return ForcedDrafts(read_vocabulary(), vllm_config.num_speculative_tokens)
    except ModelError as error:
        if asked:
            raise
        _log.warning("specgrammar: no forced drafts: %s", error)
        return None


def _obstacle(vllm_config: Any) -> str:
    """Why vLLM cannot verify drafts that its scheduler adds; empty where it can."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return (
            "without speculative_config vLLM verifies no drafts; for forced drafts alone pass the method "
            f"'custom_class' with the model {_OUR_PROPOSER!r} and the algorithm 'none'"
        )
    if vllm_config.scheduler_config.async_scheduling:
        return "with async_scheduling the next step is scheduled before this one's tokens are known"
    if speculative.method not in (*_CHOOSING_METHODS, "custom_class"):
        return (
            f"the method {speculative.method!r} may verify its drafts by their probabilities, and forced "
            "drafts have none"
        )
    if vllm_config.use_v2_model_runner:
        return "vLLM's V2 model runner verifies its own copy of the drafts; set VLLM_USE_V2_MODEL_RUNNER=0"
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return "with pipeline parallelism drafts are taken while a step of the request is under way"
    if speculative.num_speculative_tokens_per_batch_size is not None:
        return "num_speculative_tokens_per_batch_size limits drafts of the runner, which these are not"
    return ""
