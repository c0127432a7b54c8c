"""From accepted paths to what the ledger keeps."""

from __future__ import annotations

from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.ledger import RequestResult, StepResult
from specgrammar.trees.tree import HostTree


def step_result(batch: DecodeBatch, tree: HostTree, paths: AcceptedPaths) -> StepResult:
    """Each request's accepted draft tokens in path order, then its bonus token."""
    results = []
    bounds, tokens = tree.cu_nodes.tolist(), tree.draft_tokens.tolist()
    lengths, bonuses = paths.accept_length.tolist(), paths.bonus_token.tolist()
    for b, (request, nodes) in enumerate(zip(batch.requests, paths.accept_index.tolist(), strict=True)):
        path = [tokens[bounds[b] + node] for node in nodes[1 : lengths[b] + 1]]
        has_bonus = bonuses[b] >= 0
        committed = (*path, bonuses[b]) if has_bonus else tuple(path)
        logprobs = None if paths.logprobs is None else tuple(paths.logprobs[b, : len(committed)].tolist())
        num_drafts = bounds[b + 1] - bounds[b] - 1
        results.append(RequestResult(request.request_id, committed, num_drafts, has_bonus, logprobs))
    return StepResult(batch.step, tuple(results))
