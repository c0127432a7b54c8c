"""Draft models: what an adapter provides to algorithms that draft with a smaller model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from specgrammar.protocols.spec import DecodeBatch
    from specgrammar.protocols.staging import Launched


class CausalDrafter(Protocol):
    """A causal language model that drafts chains; an adapter provides it (see `ProducerContext`)."""

    @property
    def vocab_size(self) -> int:
        """Number of logits columns that are real tokens; the same tokenizer as the target's."""
        ...

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        """Launch drafts of `num_tokens` tokens, at least 1, behind each request's last committed one.

        Keeps its own KV cache per request id and catches up with what was committed since, by an unresolved
        step as well.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Free what is kept for a request that has finished; unknown ids are ignored."""
        ...


@dataclass(frozen=True, eq=False)
class Drafts:
    """What a drafter makes: memory of the device that launched work writes, in the stream's order.

    Attributes:
        tokens: int64 `[bs, 1 + num_tokens]`: each request's last committed token, then its drafts; an id that
            is outside of the drafter's vocabulary where nothing could be drawn, and what follows means nothing.
        q: with `sampled=True` the distributions that each draft was drawn from: float32
            `[bs, num_tokens, vocab_size]` (after temperature and truncation of the request's sampling
            parameters); else None, and the drafts are the argmax ids.
        made: the last piece of that work; raises where drafting failed.
    """

    tokens: torch.Tensor
    q: torch.Tensor | None
    made: Launched[object]
