"""A target model of a few lines that keeps its cache as strictly as a real one, and an engine around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specgrammar.config import Config
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.testing.toys import VOCABULARY, path_to
from specgrammar.trees.tree import DraftTree

NUM_COLUMNS = VOCABULARY.vocab_size + 5  # padded logits columns, which are the likeliest of all


def toy_logits(tokens: Sequence[int], sharpness: float = 3.0) -> torch.Tensor:
    """Logits that depend on the last three tokens: repetitive enough for drafts to be accepted."""
    rng = np.random.default_rng([17, *(token % 2**31 for token in tokens[-3:])])
    logits = rng.normal(0.0, sharpness, NUM_COLUMNS)
    logits[VOCABULARY.vocab_size :] = 50.0
    return torch.from_numpy(logits).float()


@dataclass
class Ready:
    """Logits that are there already."""

    logits: torch.Tensor

    def wait(self) -> torch.Tensor:
        """The logits."""
        return self.logits

    def value(self) -> torch.Tensor:
        """The logits."""
        return self.logits


@dataclass
class ToyTarget:
    """Its cache is a list of tokens per request; `verify` fails if that is not the committed history."""

    cache: dict[str, list[int]] = field(default_factory=dict)
    num_forwards: int = 0
    max_length: int | None = None
    max_batch_size: int | None = None
    supports_resample: bool = True
    _tree: DraftTree | None = None

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Cache the prompt but for its last token."""
        assert request_id not in self.cache
        self.cache[request_id] = list(tokens[:-1])

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Ready:
        """Logits of every node behind its request's cache and its own path."""
        assert tree.host is not None
        self._tree, self.num_forwards = tree, self.num_forwards + 1
        rows = []
        bounds = tree.cu_nodes.tolist()
        for b, request in enumerate(batch.requests):
            cached = self.cache[request.request_id]
            assert [*cached, request.tokens[-1]] == list(request.tokens), "the cache is not the history"
            for node in range(bounds[b + 1] - bounds[b]):
                if tree.host.draft_tokens[bounds[b] + node] < 0:  # padding: nobody looks at its row
                    rows.append(torch.zeros(NUM_COLUMNS))
                    continue
                path = path_to(tree.host, bounds[b], node)
                assert self.max_length is None or len(request.tokens) + len(path) <= self.max_length
                rows.append(toy_logits([*request.tokens, *path]))
        return Ready(torch.stack(rows))

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """Keep the root and the accepted nodes."""
        assert self._tree is not None
        assert self._tree.host is not None
        kept = paths.wait().nodes_to_keep()
        for b, request in enumerate(batch.requests):
            first = int(self._tree.cu_nodes[b])
            nodes = kept[b][kept[b] >= 0]
            self.cache[request.request_id] += self._tree.host.draft_tokens[first + nodes].tolist()

    def remove(self, request_id: str) -> None:
        """Forget a request."""
        self.cache.pop(request_id, None)


@dataclass
class ToyAdapter:
    """What the engine asks of a model runtime."""

    target: ToyTarget = field(default_factory=ToyTarget)
    vocabulary: Vocabulary = VOCABULARY
    device: Device = field(default_factory=InlineDevice)

    def load_drafter(self, name: str) -> CausalDrafter:
        """There is no draft model."""
        raise AssertionError(name)


def join_in_order(_: tuple[int, ...]) -> range:
    """Let all that wait join in their order, whenever their grammars are compiled: always the same steps."""
    return range(10_000)


def toy_engine(max_length: int | None = None, **config: Any) -> tuple[Engine, ToyTarget]:
    """An engine over the toy target, and the target."""
    adapter = ToyAdapter(ToyTarget(max_length=max_length))
    return Engine.build(Config(**config), adapter, agree_joins=join_in_order), adapter.target
