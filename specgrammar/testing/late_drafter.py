"""A draft model whose chains are written by the stream, behind whatever the stream knows to be committed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specgrammar.protocols.spec import DecodeBatch, Drafts
from specgrammar.protocols.staging import Device
from specgrammar.testing.late_target import histories, logits_behind
from specgrammar.testing.toys import STOP


@dataclass
class LateDrafter:
    """What the toy is likeliest to say, were there no grammar."""

    device: Device
    vocab_size: int = STOP + 1

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        """Launch what writes the chains; until then their memory is no token."""
        assert not sampled
        tokens = torch.full((len(batch), 1 + num_tokens), -5, dtype=torch.int64)
        known = histories(batch)

        def draft() -> None:
            for row, history in enumerate(known()):
                chain = history[-1:]
                for _ in range(num_tokens):
                    chain.append(int(logits_behind([*history[-3:], *chain[1:]])[: STOP + 1].argmax()))
                tokens[row] = torch.tensor(chain)

        return Drafts(tokens, None, self.device.launch(draft, "draft"))

    def forget(self, request_id: str) -> None:
        """Nothing is kept."""
