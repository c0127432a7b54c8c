"""Targets without a fault, which the broken ones are made of: they trust their callers, as real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ModelError
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.testing.toy_target import Ready, ToyTarget, toy_logits
from specgrammar.testing.toys import path_to
from specgrammar.trees.tree import DraftTree, HostTree


@dataclass
class Trusting(ToyTarget):
    """The toy, which believes that its cache is the history: what is wrong with it shows in the logits."""

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        assert tree.host is not None
        self._tree, rows = tree, []
        bounds = tree.cu_nodes.tolist()
        for b, request in enumerate(batch.requests):
            nodes = tree.host.draft_tokens[bounds[b] : bounds[b + 1]].tolist()
            cached = self.cache[self.key(b, request.request_id)]
            for node, token in enumerate(nodes):
                path = [] if token < 0 else self.path(tree.host, bounds[b], node)
                rows.append(self.row([*cached, nodes[0], *path], len(cached) + node))
        return self.ready(torch.stack(rows), tree)

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        assert self._tree is not None
        assert self._tree.host is not None
        kept = self.kept(paths.wait())
        for b, request in enumerate(batch.requests):
            nodes = int(self._tree.cu_nodes[b]) + kept[b][kept[b] >= 0]
            self.cache[self.key(b, request.request_id)] += self._tree.host.draft_tokens[nodes].tolist()

    def key(self, row: int, request_id: str) -> str:  # noqa: ARG002  # for others
        return request_id

    def path(self, tree: HostTree, first: int, node: int) -> list[int]:
        return path_to(tree, first, node)

    def row(self, tokens: list[int], place: int) -> torch.Tensor:  # noqa: ARG002  # for others
        return toy_logits(tokens)

    def kept(self, paths: AcceptedPaths) -> NDArray[np.int64]:
        return paths.nodes_to_keep()

    def ready(self, logits: torch.Tensor, tree: DraftTree) -> Any:  # noqa: ARG002  # for others
        return Ready(logits)


class Placed(Trusting):
    """Its logits depend on positions."""

    def row(self, tokens: list[int], place: int) -> torch.Tensor:  # noqa: ARG002  # for others
        return toy_logits([*tokens[-2:], len(tokens) - 1])


@dataclass
class Full(Trusting):
    """Refuses what its cache has no room for."""

    max_length: int | None = 64
    max_batch_size: int | None = 2

    def add(self, request_id: str, tokens: Sequence[int]) -> None:
        assert self.max_length is not None
        if len(tokens) > self.max_length or len(self.cache) == self.max_batch_size:
            raise ModelError(f"no room for {request_id!r}")
        super().add(request_id, tokens)
