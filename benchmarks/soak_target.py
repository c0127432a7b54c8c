"""A target without a model: it writes the texts that it is given, at the price of filling rows of logits.

Everything around it is the engine's own, so what a step costs beside it is the host's work. At every node the
next token of the request's text has the highest logit, whatever the draft was; now and then an id that no
grammar allows stands above it, as a real model's favourite would.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.device import InlineDevice
from specgrammar.trees.tree import DraftTree

ILLEGAL_EVERY = 16
"""Every so many tokens an illegal id is the likeliest."""


@dataclass(frozen=True)
class Written:
    """Logits that are there."""

    logits: torch.Tensor

    def wait(self) -> torch.Tensor:
        """The logits."""
        return self.logits

    def value(self) -> torch.Tensor:
        """The logits."""
        return self.logits


class ScriptedTarget:
    """A `TargetModel` that follows a text per request.

    Attributes:
        seconds: time spent in here.
    """

    supports_resample = True
    max_batch_size: int | None = None
    max_length: int | None = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Nothing to write yet."""
        self.seconds = 0.0
        self._illegal = min(vocabulary.special_ids - set(vocabulary.stop_ids))
        self._vocab_size = vocabulary.vocab_size
        self._logits = torch.empty((0, vocabulary.vocab_size))
        self._texts: dict[str, NDArray[np.int64]] = {}

    def write(self, request_id: str, tokens: Sequence[int]) -> None:
        """What the request will get as its output; the last token is repeated behind the end."""
        self._texts[request_id] = np.array(tokens, dtype=np.int64)

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """See `TargetModel`; the prompt must not be empty, and there is no cache."""
        assert tokens
        assert request_id in self._texts, "call write first"

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Written:
        """See `TargetModel`. The rows are memory that the next call writes again."""
        begin = time.perf_counter()
        assert tree.host is not None
        num_nodes = tree.num_nodes
        if num_nodes > len(self._logits):
            self._logits = torch.empty((2 * num_nodes, self._vocab_size))
        rows = self._logits[:num_nodes].zero_()
        depths = tree.host.depths()
        tokens, positions = np.empty_like(depths), np.empty_like(depths)
        for b, request in enumerate(batch.requests):
            nodes, text = tree.host.request_slice(b), self._texts[request.request_id]
            positions[nodes] = depths[nodes] + request.num_tokens - request.num_prompt_tokens
            tokens[nodes] = text[np.minimum(positions[nodes], len(text) - 1)]
        rows[torch.arange(num_nodes), torch.from_numpy(tokens)] = 1.0
        rows[torch.from_numpy(positions % ILLEGAL_EVERY == ILLEGAL_EVERY - 1), self._illegal] = 2.0
        self.seconds += time.perf_counter() - begin
        return Written(rows)

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """See `TargetModel`; there is no cache."""

    def remove(self, request_id: str) -> None:
        """Forget the request's text."""
        self._texts.pop(request_id, None)


@dataclass(frozen=True)
class ScriptedAdapter:
    """What an engine asks of a model runtime."""

    target: ScriptedTarget
    vocabulary: Vocabulary
    device: Device = field(default_factory=InlineDevice)

    def load_drafter(self, name: str) -> CausalDrafter:
        """There is no draft model."""
        raise NotImplementedError(name)
