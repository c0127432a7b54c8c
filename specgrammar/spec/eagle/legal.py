"""`LegalTokens`: what each request's grammar lets follow the nodes of a tree that is still growing.

Reading the matchers is host work between a draft's levels, so it is for producers that run in sync with the
grammar (`needs = "grammar"`).
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.spec.eagle.chain_growth import ChainGrowth
from specgrammar.spec.eagle.growth import Growth
from specgrammar.trees.tree import HostTree

_CLOSED = (NodeStatus.REJECTED, NodeStatus.ENDED, NodeStatus.PADDING)


class LegalTokens:
    """What may follow each node of the growing trees of one step."""

    def __init__(self, vocabulary: Vocabulary, device: Device, batch: DecodeBatch, roots: Tensor) -> None:
        """Begin at the roots, int64 `[bs]`; the device's observer is told of the time as grammar work."""
        self._vocabulary, self._batch, self._observer = vocabulary, batch, device.on_work
        self._tokens: list[list[int]] = [[root] for root in roots.tolist()]
        self._parents: list[list[int]] = [[-1] for _ in self._tokens]
        self._device = roots.device

    def behind_root(self) -> Tensor:
        """What may follow the roots, bool `[bs, 1, vocab_size]`."""
        return self._ask(1)

    def behind(self, growth: Growth | ChainGrowth) -> Tensor:
        """What may follow the nodes of a frontier, bool `[bs, topk, vocab_size]`; asked once at each depth."""
        frontier = growth.frontier_tokens.tolist()
        num_nodes, count = len(self._tokens[0]), growth.frontier_tokens.shape[1]
        for b, tokens in enumerate(frontier):
            above = (
                [0] * count if num_nodes == 1 or isinstance(growth, ChainGrowth) else growth.above[b].tolist()
            )
            begin = 0 if num_nodes == 1 else num_nodes - count  # of the frontier before
            self._tokens[b] += tokens
            self._parents[b] += [begin + place for place in above]
        return self._ask(count)

    def _ask(self, num_last: int) -> Tensor:
        """What may follow the last nodes of each tree."""
        begin = time.perf_counter()
        legal = self._fill(num_last)
        if self._observer is not None:
            self._observer("build", begin, time.perf_counter())
        return legal

    def _fill(self, num_last: int) -> Tensor:
        num_nodes, bs = len(self._tokens[0]), len(self._tokens)
        rows: NDArray[np.int32] = np.empty((num_nodes, self._vocabulary.num_words), np.int32)
        last: NDArray[np.int32] = np.empty((bs, num_last, self._vocabulary.num_words), np.int32)
        for b, view in enumerate(self._batch.requests):
            if view.grammar is None:
                last[b] = -1
                continue
            tree = HostTree.from_parents(
                np.array([0, num_nodes]), np.array(self._tokens[b]), np.array(self._parents[b])
            )
            status = view.grammar.fill(tree, rows)
            last[b] = rows[-num_last:]
            last[b, np.isin(status[-num_last:], _CLOSED)] = 0
        bits = np.unpackbits(last.view(np.uint8), axis=2, bitorder="little")
        return torch.from_numpy(bits[:, :, : self._vocabulary.vocab_size].astype(np.bool_)).to(self._device)
