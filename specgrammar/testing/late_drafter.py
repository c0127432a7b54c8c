"""A draft model whose chains are written by the stream, behind whatever the stream knows to be committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specgrammar.protocols.drafter import Drafts
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.spec.noise import Stream
from specgrammar.spec.sampler import sample_tokens, truncate_probs
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.late_target import histories, logits_behind
from specgrammar.testing.toys import STOP


@dataclass
class LateDrafter:
    """What the toy says, were there no grammar; where it draws it is less sure of it than the toy is."""

    device: Device
    vocab_size: int = STOP + 1

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        """Launch what writes the chains, and their q; until then their memory is no token."""
        tokens = torch.full((len(batch), 1 + num_tokens), -5, dtype=torch.int64)
        q = torch.full((len(batch), num_tokens, self.vocab_size), torch.nan) if sampled else None
        params = [view.sampling if sampled else SamplingParams() for view in batch.requests]
        known = histories(batch)

        def draft() -> None:
            texts = known()
            tokens[:, 0] = torch.tensor([text[-1] for text in texts])
            for column in range(num_tokens):
                logits = torch.stack([self.logits_behind(text, sampled=sampled) for text in texts])
                if q is not None:
                    q[:, column] = truncate_probs(logits, params)
                positions = np.array([len(text) for text in texts])
                drawn = sample_tokens(logits, params, positions, stream=Stream.DRAFT)
                tokens[:, 1 + column] = drawn
                texts = [[*text, token] for text, token in zip(texts, drawn.tolist(), strict=True)]

        return Drafts(tokens, q, self.device.launch(draft, "draft"))

    def logits_behind(self, text: Sequence[int], *, sampled: bool) -> torch.Tensor:
        """The toy's own, or a mixture of these with what it would say without the token before the last."""
        logits = logits_behind(text)[: self.vocab_size]
        return (logits + logits_behind(text[-1:])[: self.vocab_size]) / 2 if sampled else logits

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""
