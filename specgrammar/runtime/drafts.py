"""Drafts are trusted for one step only."""

from __future__ import annotations

import numpy as np

from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime.trace import Trace
from specgrammar.trees.tree import DraftTree, HostTree


def current_draft(tree: DraftTree, batch: DecodeBatch, trace: Trace) -> DraftTree:
    """The producer's tree, or the bare roots if it was made for another step or another history.

    A stale draft (made before a preemption, say) is not wrong to verify but would be verified against the
    wrong prefix; it is dropped and counted, and the step does ordinary decoding.
    """
    roots = [request.tokens[-1] for request in batch.requests]
    if tree.step == batch.step and tree.bs == len(batch) and _has_roots(tree, roots):
        return tree
    trace.num_stale_drafts += 1
    host = HostTree.roots(roots)
    return DraftTree(batch.step, host.cu_nodes, host)


def _has_roots(tree: DraftTree, roots: list[int]) -> bool:
    """Whether the host's copy, where there is one, starts each request with its last committed token."""
    if tree.host is None:
        return True
    tokens, first = tree.host.draft_tokens, tree.cu_nodes[:-1]
    return bool(first.size == 0 or first.max() < tokens.size) and bool(np.array_equal(tokens[first], roots))
