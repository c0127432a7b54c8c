"""From continuations to trees: which nodes are most likely to be accepted, for a whole batch at once.

Continuations that begin alike share the nodes of what they share. Each has a number of votes; a node's score is its
share of the votes that its parent's children have, its chance the product of the scores on its path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Held back for a token that was never seen here. On real texts this makes the scores fit the rates at which nodes
# were accepted.
_UNSEEN_VOTES = 1


@dataclass(frozen=True)
class VotedNodes:
    """Nodes without the roots, request by request, the likeliest first.

    Attributes:
        request: int64 `[n]`.
        number: int64 `[n]`, the node's number in its tree; the root is 0.
        parent: int64 `[n]`, its parent's number.
        token: int32 `[n]`.
        score: float64 `[n]`.
        voter: int64 `[n]`, the first of the continuations that it is on.
    """

    request: NDArray[np.int64]
    number: NDArray[np.int64]
    parent: NDArray[np.int64]
    token: NDArray[np.int32]
    score: NDArray[np.float64]
    voter: NDArray[np.int64]


def vote(
    continuations: NDArray[np.int32], votes: NDArray[np.int64], num_nodes: int, breadth: int
) -> VotedNodes:
    """The `num_nodes` nodes with the best chances of each request's tree.

    Of equal chances the node nearer to the root comes first, then the one whose continuation stands first; of
    equal children that do not fit into `breadth`, the one whose continuation stands first is kept.

    Args:
        continuations: int32 `[depth, bs, voters]`, by level; -1 from where one ends.
        votes: int64 `[bs, voters]`.
        num_nodes: most nodes of a tree, without the root.
        breadth: most children of a node.
    """
    depth, bs, num_voters = continuations.shape
    # A node is named by its first voter at its level; a child's chance is below its parent's, and so it comes later.
    voters = np.arange(num_voters)
    leaders = np.zeros((depth + 1, bs, num_voters), dtype=np.int64)
    for level, tokens in enumerate(continuations):
        names = (leaders[level] << 32) + np.where(tokens >= 0, tokens, -1 - voters)
        leaders[level + 1] = (names[:, :, None] == names[:, None, :]).argmax(axis=2)
    rows = np.arange((depth + 1) * bs).reshape(depth + 1, bs, 1) * num_voters
    nodes = rows + leaders
    there = continuations >= 0
    node, parent = nodes[1:][there], nodes[:-1][there]
    weight = np.broadcast_to(votes, continuations.shape)[there]
    total = _UNSEEN_VOTES + np.bincount(parent, weight, minlength=nodes.size)
    votes_of = np.bincount(node, weight, minlength=nodes.size)

    is_node = there & (leaders[1:] == voters)
    node, parent = nodes[1:][is_node], nodes[:-1][is_node]
    score = np.zeros(nodes.size)
    score[node] = votes_of[node] / total[parent]
    score[_beyond(breadth, node, parent, votes_of)] = 0.0
    chance = np.empty_like(nodes, dtype=np.float64)
    chance[0] = 1.0
    scores = score[nodes]
    for level in range(depth):
        chance[level + 1] = scores[level + 1] * np.take_along_axis(chance[level], leaders[level], axis=1)

    chance_of = chance.ravel()[node]
    request = node // num_voters % bs
    order = np.lexsort((-chance_of, request))
    order = order[chance_of[order] > 0]
    first = np.searchsorted(request[order], np.arange(bs))
    rank = np.arange(len(order)) - first[request[order]]
    order, number = order[rank < num_nodes], rank[rank < num_nodes] + 1
    node, parent, request = node[order], parent[order], request[order]
    numbers = np.zeros(nodes.size, dtype=np.int64)
    numbers[node] = number
    tokens_of = continuations.ravel()[node - bs * num_voters]
    return VotedNodes(request, number, numbers[parent], tokens_of, score[node], node % num_voters)


def _beyond(
    breadth: int, node: NDArray[np.int64], parent: NDArray[np.int64], votes_of: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The nodes that `breadth` siblings with more votes come before, or as many that stand before them."""
    crowded = np.bincount(parent)[parent] > breadth
    node, parent = node[crowded], parent[crowded]
    order = np.lexsort((node, -votes_of[node], parent))
    node, parent = node[order], parent[order]
    rank = np.arange(len(node)) - np.searchsorted(parent, parent)
    return node[rank >= breadth]
