"""Drafts are trusted for one step only, and only when they are well formed."""

from __future__ import annotations

from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime.trace import Trace
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar.trees.validate import validate_tree


def current_draft(tree: DraftTree, batch: DecodeBatch, vocabulary: Vocabulary, trace: Trace) -> DraftTree:
    """The producer's tree, or the bare roots if it was made for another step or another history.

    A stale draft (made before a preemption, say) is not wrong by itself but would be verified behind the wrong
    prefix; it is dropped and counted, and the step does ordinary decoding.

    Raises:
        TreeError: the host's tree is malformed or holds ids that are no tokens. It is found here, before a
            model or a grammar reads it.
    """
    if tree.step == batch.step and tree.bs == len(batch):
        if tree.host is None:
            return tree
        validate_tree(tree.host, [request.request_id for request in batch.requests], vocabulary.vocab_size)
        roots = [request.tokens[-1] for request in batch.requests]
        if tree.host.draft_tokens[tree.host.cu_nodes[:-1]].tolist() == roots:
            return tree
    trace.num_stale_drafts += 1
    return DraftTree.from_host(batch.step, HostTree.roots([request.tokens[-1] for request in batch.requests]))
