"""From accepted paths to what the ledger keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.ledger import RequestResult, StepResult
from specgrammar.trees.tree import HostTree


def step_result(
    batch: DecodeBatch, status: NDArray[np.int8], tree: HostTree, paths: AcceptedPaths
) -> StepResult:
    """Each request's accepted draft tokens in path order, then its bonus token."""
    results = []
    num_real = np.add.reduceat(status != NodeStatus.PADDING, tree.cu_nodes[:-1]) if len(batch) else ()
    bounds, tokens = tree.cu_nodes.tolist(), tree.draft_tokens.tolist()
    lengths, bonuses = paths.accept_length.tolist(), paths.bonus_token.tolist()
    for b, (request, nodes) in enumerate(zip(batch.requests, paths.accept_index.tolist(), strict=True)):
        path = [tokens[bounds[b] + node] for node in nodes[1 : lengths[b] + 1]]
        has_bonus = bonuses[b] >= 0
        committed = (*path, bonuses[b]) if has_bonus else tuple(path)
        logprobs = None if paths.logprobs is None else tuple(paths.logprobs[b, : len(committed)].tolist())
        num_drafts = max(0, int(num_real[b]) - 1)
        results.append(RequestResult(request.request_id, committed, num_drafts, has_bonus, logprobs))
    return StepResult(batch.step, tuple(results))
