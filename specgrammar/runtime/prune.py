"""Prune before verify: drafts that the grammar forbids cost no forward where they are known before it.

Padding, which is what a device's fixed shapes leave of nodes that it cut, goes with them.

An illegal draft is never accepted, whatever the target says, so cutting it changes no token: only fewer nodes
are verified. A node that was *drawn* from a stated distribution stays where its parent can be reached, legal
or not: rejection sampling needs it (p = (.5, .5, 0), q = (.5, 0, .5), the illegal draw left out, then a draw
from p: the first token comes with .75). Behind an illegal node nothing is ever reached, so all of it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.rows import RequestNodes
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.spec import Needs
from specgrammar.protocols.staging import Device
from specgrammar.trees.tree import DraftTree, HostTree, PrunedDraft, SampledProposals


def can_prune(tree: DraftTree, needs: Needs, device: Device) -> bool:
    """Whether a tree and its grammars are known before the launch, and nothing that overlaps is lost by that.

    No clock is asked, so that replicas decide alike.

    Args:
        tree: as it was proposed.
        needs: the producer's.
        device: where the forward runs. Where it does nothing aside, grammar work costs the same at any time.
    """
    if tree.num_nodes == tree.bs:
        return False
    return not device.runs_aside or (needs == "grammar" and tree.host is not None)


def prune_illegal(tree: DraftTree, host: HostTree, sessions: Sequence[GrammarSession]) -> DraftTree:
    """The tree without padding and the drafts that the grammars forbid; itself where there are none.

    Requests that no grammar restricts yet, or that are over, keep all their drafts. A grammar that fails ends
    its request alone.

    Args:
        tree: what was proposed.
        host: its ids and links.
        sessions: one per request, the grammars where the histories are.

    Returns:
        A tree of the host's, if anything was cut; `pruned` says what.
    """
    row_of_node = None if tree.sampled is None else tree.sampled.row_of_node
    is_drawn = np.zeros(host.num_nodes, np.bool_) if row_of_node is None else row_of_node >= 0
    parents = host.parents()
    is_kept = parents >= 0  # not so for roots and padding
    is_kept[host.cu_nodes[:-1]] = True
    cut: list[PrunedDraft] = []
    for request, (session, nodes) in enumerate(zip(sessions, RequestNodes.of(host), strict=True)):
        if len(nodes.tokens) == 1 or not session.engaged or session.finish is not None:
            continue
        own = host.request_slice(request)
        paths = _Paths(nodes.tokens, parents[own].tolist())
        is_legal = paths.legal(session)
        if session.finish is not None:
            continue  # its grammar has failed, and with it the request
        for node in range(1, len(nodes.tokens)):
            parent = paths.parents[node]
            stays = is_drawn[own][node] and parent >= 0 and is_legal[parent]
            if not is_legal[node] and not stays:
                is_kept[own.start + node] = False
                if parent >= 0:
                    cut.append(PrunedDraft(request, paths.to(node), _source(tree, own.start + node), "illegal"))
    return _kept(tree, host, parents, is_kept, cut) if not is_kept.all() else tree


class _Paths:
    """The paths of one request's tree."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.tokens, self.parents = tokens, parents

    def to(self, node: int) -> tuple[int, ...]:
        """The tokens from behind the root to a node."""
        return tuple(self.tokens[n] for n in self._up_from(node))[::-1]

    def legal(self, session: GrammarSession) -> list[bool]:
        """Whether the grammar allows each node behind those above it, found by whole paths; not for padding."""
        inner = set(self.parents)
        is_legal = [False] * len(self.tokens)
        is_legal[0] = True
        for leaf in range(len(self.tokens) - 1, 0, -1):
            if leaf not in inner and self.parents[leaf] >= 0:
                num_legal = session.validate(self.to(leaf))
                for node in list(self._up_from(leaf))[::-1][:num_legal]:
                    is_legal[node] = True
        return is_legal

    def _up_from(self, node: int) -> Iterator[int]:
        while node > 0:
            yield node
            node = self.parents[node]


def _source(tree: DraftTree, node: int) -> int:
    return -1 if tree.source is None else int(tree.source[node])


def _kept(
    tree: DraftTree,
    host: HostTree,
    parents: NDArray[np.int64],
    is_kept: NDArray[np.bool_],
    cut: Sequence[PrunedDraft],
) -> DraftTree:
    """The tree of some nodes, every node's parent among them."""
    sizes = np.add.reduceat(is_kept, host.cu_nodes[:-1], dtype=np.int64)
    cu_nodes = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    starts = np.repeat(host.cu_nodes[:-1], np.diff(host.cu_nodes))
    number = np.cumsum(is_kept) - 1 - np.repeat(cu_nodes[:-1], np.diff(host.cu_nodes))  # within its request
    new_parents = np.where(parents >= 0, number[starts + np.maximum(parents, 0)], -1)
    kept = HostTree.from_parents(cu_nodes, host.draft_tokens[is_kept], new_parents[is_kept])
    sampled = tree.sampled
    if sampled is not None:
        sampled = SampledProposals(sampled.row_of_node[is_kept], sampled.q)
    pruned = DraftTree.from_host(
        tree.step,
        kept,
        sampled=sampled,
        score=None if tree.score is None else tree.score[is_kept],
        source=None if tree.source is None else tree.source[is_kept],
        sources=tree.sources,
    )
    return replace(pruned, pruned=(*tree.pruned, *cut), drafting_s=tree.drafting_s)
