"""The real model as a target that runs once per context, so that thousands of requests can be sampled from it.

Requests that share a prompt, under a grammar of a few words, meet a few hundred contexts. Logits and features
are the model's own; its cache is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import PreTrainedModel

from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths, SharedTensors
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.toy_target import Ready
from specgrammar.testing.toys import path_to
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar_transformers import TransformersTarget


class Contexts:
    """What the model computes behind the last token of a context: logits `[columns]`, and all its features."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.shared: SharedTensors = TransformersTarget(model, 1).shared

        @cache
        @torch.no_grad()
        def behind(tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
            out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
            return out.logits[0, -1], torch.stack([layer[0, -1] for layer in out.hidden_states])

        self._behind = behind

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits; do not write to them."""
        return self._behind(tuple(tokens))[0]

    def features(self, tokens: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """The features of some layers, joined."""
        return self._behind(tuple(tokens))[1][list(layers)].flatten()


@dataclass
class RememberedTarget:
    """Its cache is a list of tokens per request, each of whose prefixes is a context."""

    contexts: Contexts
    max_length: int | None = None
    max_batch_size: int | None = None
    supports_resample: bool = True
    _cache: dict[str, list[int]] = field(default_factory=dict)
    _num_taken: dict[str, int] = field(default_factory=dict)
    _layers: tuple[int, ...] = ()
    _verified: HostTree | None = None

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        """Cache the prompt but for its last token."""
        self._cache[request_id], self._num_taken[request_id] = list(tokens[:-1]), 0

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Ready:
        """The logits of every node behind its request's cache and its own path."""
        self._verified = host = _on_host(tree)
        rows = []
        for b, view in enumerate(batch.requests):
            nodes = host.request_slice(b)
            assert [*self._cache[view.request_id], host.draft_tokens[nodes.start]] == list(view.tokens)
            for node in range(nodes.stop - nodes.start):
                path = path_to(host, nodes.start, node) if host.draft_tokens[nodes.start + node] >= 0 else []
                rows.append(self.contexts.logits([*view.tokens, *path]))
        return Ready(torch.stack(rows))

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        """Keep the root and the accepted nodes."""
        assert self._verified is not None
        for b, nodes in enumerate(paths.wait().nodes_to_keep()):
            tokens = self._verified.draft_tokens[self._verified.request_slice(b)]
            self._cache[batch.requests[b].request_id] += tokens[nodes[nodes >= 0]].tolist()

    def remove(self, request_id: str) -> None:
        """Forget a request."""
        self._cache.pop(request_id, None)
        self._num_taken.pop(request_id, None)

    @property
    def shared(self) -> SharedTensors:
        """The model's embedding and output head."""
        return self.contexts.shared

    def watch(self, layers: Sequence[int]) -> None:
        """Give features of these layers."""
        self._layers = tuple(layers)

    def take_features(self, request_id: str) -> torch.Tensor:
        """The features of what was cached since the last call."""
        cached, num_taken = self._cache[request_id], self._num_taken[request_id]
        self._num_taken[request_id] = len(cached)
        fresh = range(num_taken + 1, len(cached) + 1)
        return torch.stack([self.contexts.features(cached[:end], self._layers) for end in fresh])


def _on_host(tree: DraftTree) -> HostTree:
    if tree.host is not None:
        return tree.host
    device = tree.device
    tokens = torch.as_tensor(device.draft_tokens).numpy()
    if device.retrieve_next_token is None:
        return HostTree(tree.cu_nodes, tokens, *chain_links(tree.cu_nodes, tokens >= 0))
    links = (device.retrieve_next_token, device.retrieve_next_sibling)
    return HostTree(tree.cu_nodes, tokens, *(torch.as_tensor(part).numpy() for part in links))


@dataclass
class RememberedAdapter:
    """What the engine asks of a model runtime."""

    target: RememberedTarget
    vocabulary: Vocabulary
    device: Device = field(default_factory=InlineDevice)

    def load_drafter(self, name: str) -> CausalDrafter:
        """There is no draft model."""
        raise AssertionError(name)
