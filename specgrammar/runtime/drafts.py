"""Drafts are trusted for one step only, and only when they are well formed."""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.errors import StaleStepError, TreeError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, StagedTree
from specgrammar.runtime.trace import Trace
from specgrammar.spec.roots import roots_tree
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar.trees.validate import validate_tree


def current_draft(
    tree: DraftTree, batch: DecodeBatch, vocabulary: Vocabulary, device: Device, trace: Trace
) -> DraftTree:
    """The producer's tree, or the bare roots if it was made for another step or another history.

    A stale draft (made before a preemption, say) is not wrong by itself but would be verified behind the wrong
    prefix; it is dropped and counted, and the step does ordinary decoding. What a device made is looked at
    when it has come to the host (`check_roots`).

    Raises:
        TreeError: the host's tree is malformed or holds ids that are no tokens. It is found here, before a
            model or a grammar reads it.
    """
    if tree.step == batch.step and tree.bs == len(batch):
        _check_sources(tree)
        if tree.host is None:
            return tree
        validate_tree(tree.host, [request.request_id for request in batch.requests], vocabulary.vocab_size)
        roots = [request.tokens[-1] for request in batch.requests]
        if batch.unresolved is None and tree.host.draft_tokens[tree.host.cu_nodes[:-1]].tolist() == roots:
            return tree
    trace.num_stale_drafts += 1
    return roots_tree(batch, device)


def _check_sources(tree: DraftTree) -> None:
    """Raise TreeError where `source` does not name one of `sources` for every node."""
    source = tree.source
    if source is None or not tree.sources:
        return
    if source.shape != (tree.num_nodes,) or ((source < 0) | (source >= len(tree.sources))).any():
        raise TreeError(
            f"source {list(source.shape)} does not fit a tree of {tree.num_nodes} nodes and the sources "
            f"{', '.join(tree.sources)}; expected an index into them for every node"
        )


def known_tree(
    tree: DraftTree, staged: StagedTree, batch: DecodeBatch, sessions: Sequence[GrammarSession]
) -> HostTree:
    """A tree whose ids and links are known without waiting for anything that is launched.

    Raises:
        TreeError: a device made a malformed one.
        StaleStepError: a device made one that begins with another token than the history ends with.
    """
    host = staged.resolve()
    if tree.host is None:
        validate_tree(host, [request.request_id for request in batch.requests])
        check_roots(host, batch, sessions)
    return host


def check_roots(tree: HostTree, batch: DecodeBatch, sessions: Sequence[GrammarSession]) -> None:
    """Raise StaleStepError where a running request's tree does not begin with its last committed token."""
    roots = tree.draft_tokens[tree.cu_nodes[:-1]].tolist()
    for request, session, root in zip(batch.requests, sessions, roots, strict=True):
        if session.finish is None and root != request.tokens[-1]:
            raise StaleStepError(
                f"request {request.request_id!r}: the tree that a device made for step {batch.step} begins "
                f"with token {root}, but the history ends with {request.tokens[-1]}; a producer that needs "
                "'nothing' has to begin behind `batch.unresolved`"
            )
