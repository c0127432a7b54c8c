"""A target model that lives on a device's stream: nothing of what it does is done when its call returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from specgrammar.errors import ModelError
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths, SharedTensors
from specgrammar.testing.toy_target import NUM_COLUMNS, toy_logits
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import DraftTree, HostTree

NUM_TEXTS = 16
OUT_OF_MEMORY = "out of memory"
HIDDEN_SIZE = 16
NUM_LAYERS = 3

_EMBEDDING, _OUTPUT = torch.randn(
    2, VOCABULARY.vocab_size, HIDDEN_SIZE, generator=torch.Generator().manual_seed(1)
)


@cache
def _logits_behind(last: tuple[int, ...]) -> torch.Tensor:
    return toy_logits(last)


def logits_behind(tokens: Sequence[int]) -> torch.Tensor:
    """The toy's logits behind some tokens, kept; do not write to them."""
    return _logits_behind(tuple(tokens[-3:]))


@dataclass
class LateTarget:
    """The toy model, whose cache and forwards are the stream's.

    A forward reads the tree that the device has: root and drafts are what it finds there when it runs, and a
    tree of another history gives other logits. Then it works in the memory of the device's tree, as captured
    graphs do, so that a copy which is issued behind it finds other tokens.

    It has features for a draft head (`SupportsFeatures`): a layer's are a function of the cached token.
    """

    device: Device
    max_length: int | None = None
    max_batch_size: int | None = None
    supports_resample: bool = True
    supports_unresolved: bool = True
    cache: dict[str, list[int]] = field(default_factory=dict)
    works: list[Launched[None]] = field(default_factory=list)
    is_full: Callable[[], bool] = lambda: False
    _verified: HostTree | None = None
    _layers: tuple[int, ...] = ()
    _num_taken: dict[str, int] = field(default_factory=dict)

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Cache all tokens but the last; fails where `is_full` says so."""
        if self.is_full():
            raise RuntimeError(OUT_OF_MEMORY)
        cached = list(tokens[:-1])

        def prefill() -> None:
            assert request_id not in self.cache, "prefilled twice"
            self.cache[request_id] = cached

        self.works.append(self.device.launch(prefill, "prefill"))

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Launched[torch.Tensor]:
        """Launch a forward over every node; it fails if the cache is not the committed history."""
        names = [view.request_id for view in batch.requests]
        for b, view in enumerate(batch.requests):
            most = batch.unresolved.max_tokens if batch.unresolved and batch.unresolved.takes_part[b] else 0
            depth = min(view.max_draft_tokens, int(np.diff(tree.cu_nodes)[b]) - 1)
            assert self.max_length is None or view.num_tokens + most + depth <= self.max_length
        known = histories(batch)

        def forward() -> torch.Tensor:
            self._verified = host = _as_it_is_now(tree)
            parents = host.parents().tolist()
            rows = []
            for b, (request_id, history) in enumerate(zip(names, known(), strict=True)):
                cached, nodes = self.cache[request_id], host.request_slice(b)
                assert [*cached, history[-1]] == history, "the cache is not the history"
                contexts: list[list[int]] = []
                for token, parent in zip(host.draft_tokens[nodes].tolist(), parents[nodes], strict=True):
                    contexts.append([*(contexts[parent] if parent >= 0 else cached[-3:]), token])
                    rows.append(logits_behind(contexts[-1]) if token >= 0 else torch.zeros(NUM_COLUMNS))
            if tree.host is None:
                _work_in(tree)
            return torch.stack(rows)

        return self.device.launch(forward, "forward")

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """Keep the root and the accepted nodes."""
        requests = [view.request_id for view in batch.requests]

        def keep() -> None:
            assert self._verified is not None
            kept = paths.value().nodes_to_keep()
            for b, request_id in enumerate(requests):
                tokens = self._verified.draft_tokens[self._verified.request_slice(b)]
                self.cache[request_id] += tokens[kept[b][kept[b] >= 0]].tolist()

        self.works.append(self.device.launch(keep, "commit"))

    def remove(self, request_id: str) -> None:
        """Forget a request."""

        def forget() -> None:
            self.cache.pop(request_id, None)
            self._num_taken.pop(request_id, None)

        self.works.append(self.device.launch(forget, "remove"))

    @property
    def shared(self) -> SharedTensors:
        """Random ones, always the same."""
        return SharedTensors(_EMBEDDING, _OUTPUT, NUM_LAYERS)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep features of these layers; see `SupportsFeatures`."""
        if self._layers:
            raise ModelError("the toy target's features are read by another draft head already")
        if not layers or not all(-1 <= layer < NUM_LAYERS for layer in layers):
            raise ModelError(f"the toy target has the layers 0 to {NUM_LAYERS - 1}, and -1; not {list(layers)}")
        self._layers = tuple(layers)

    def take_features(self, request_id: str) -> torch.Tensor:
        """For work on the stream: the features of what was cached since the last call."""
        cached = self.cache.get(request_id, [])
        fresh = torch.tensor(cached[self._num_taken.get(request_id, 0) :], dtype=torch.int64)
        self._num_taken[request_id] = len(cached)
        return torch.cat([_EMBEDDING[fresh] * (2.0 + layer) for layer in self._layers], dim=-1)


def histories(batch: DecodeBatch) -> Callable[[], list[list[int]]]:
    """For work that is launched now: each request's tokens, those of an unresolved step included."""
    known, unresolved = [list(view.tokens) for view in batch.requests], batch.unresolved

    def read() -> list[list[int]]:
        if unresolved is None:
            return known
        committed = unresolved.value()
        rows = zip(committed.tokens.tolist(), committed.num_tokens.tolist(), strict=True)
        return [[*history, *row[:count]] for history, (row, count) in zip(known, rows, strict=True)]

    return read


def parts_of(tree: DraftTree) -> list[torch.Tensor]:
    """Tokens, first children and siblings on the device."""
    parts = (tree.device.draft_tokens, tree.device.retrieve_next_token, tree.device.retrieve_next_sibling)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _as_it_is_now(tree: DraftTree) -> HostTree:
    if tree.host is not None:
        return tree.host
    device = tree.device
    tokens = torch.as_tensor(device.draft_tokens).numpy().copy()
    if device.retrieve_next_token is None:
        return HostTree(tree.cu_nodes, tokens, *chain_links(tree.cu_nodes, tokens >= 0))
    links = (device.retrieve_next_token, device.retrieve_next_sibling)
    return HostTree(tree.cu_nodes, tokens, *(torch.as_tensor(part).numpy().copy() for part in links))


def _work_in(tree: DraftTree) -> None:
    tokens = parts_of(tree)[0]
    tokens.copy_(torch.where(tokens < 0, tokens, (tokens + 1) % NUM_TEXTS))


@dataclass
class LateAdapter:
    """What the engine asks of a model runtime."""

    device: Device
    target: LateTarget
    drafter: CausalDrafter | None = None
    vocabulary: Vocabulary = VOCABULARY

    def load_drafter(self, name: str) -> CausalDrafter:
        """The one that was given."""
        assert self.drafter is not None, name
        return self.drafter
