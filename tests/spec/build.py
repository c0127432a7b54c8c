"""Small trees, logits, statuses and requests, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import HostTree

VOCAB = 10


def forest(*requests: tuple[Sequence[int], Sequence[int]]) -> HostTree:
    """Trees from (tokens, parents) per request; a parent of -1 makes a root or padding."""
    sizes = [len(tokens) for tokens, _ in requests]
    return HostTree.from_parents(
        np.cumsum([0, *sizes]),
        np.array([token for tokens, _ in requests for token in tokens], dtype=np.int64),
        np.array([parent for _, parents in requests for parent in parents], dtype=np.int64),
    )


def wants(*tokens: int, columns: int = VOCAB) -> torch.Tensor:
    """Logits whose row i can only be read as `tokens[i]`."""
    logits = torch.full((len(tokens), columns), -math.inf)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 1.5
    return logits


def views(params: SamplingParams, count: int = 1, num_tokens: int = 1) -> list[RequestView]:
    """Requests `r0`, `r1`, ... that sample alike."""
    return [RequestView(f"r{i}", tuple(range(num_tokens)), 1, 100, params) for i in range(count)]


def status_of(*values: NodeStatus) -> NDArray[np.int8]:
    """The statuses of the nodes."""
    return np.array(values, dtype=np.int8)


def live(tree: HostTree) -> NDArray[np.int8]:
    """Every node is legal."""
    return np.full(len(tree.draft_tokens), NodeStatus.LIVE, dtype=np.int8)


def as_lists(paths: AcceptedPaths) -> tuple[list[list[int]], list[int], list[int]]:
    """Accepted nodes, accepted lengths, bonus tokens."""
    for array in (paths.accept_index, paths.accept_length, paths.bonus_token):
        assert array.dtype == np.int64
    return paths.accept_index.tolist(), paths.accept_length.tolist(), paths.bonus_token.tolist()
