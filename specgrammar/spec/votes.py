"""From continuations to trees: which nodes are most likely to be accepted, for a whole batch at once.

Continuations that begin alike share the nodes of what they share. Each has a number of votes; a node's score is
its share of the votes that its parent's children have, its chance the product of the scores on its path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Held back for a token that was never seen here. On function calls and code this makes the scores fit the rates
# at which nodes were accepted.
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
        continuations: int32 `[depth, voters, bs]`, by level; -1 from where one ends.
        votes: int64 `[voters, bs]`; at most 255 voters.
        num_nodes: most nodes of a tree, without the root.
        breadth: most children of a node.
    """
    depth, num_voters, bs = continuations.shape
    there = continuations >= 0
    # A node is named by the first of the voters that have come the same way to its level.
    voter = np.arange(num_voters, dtype=np.int32)[:, None]
    alike = continuations[:, :, None] == continuations[:, None]
    for level in range(1, depth):
        alike[level] &= alike[level - 1]
    from_last = np.arange(num_voters, 0, -1, dtype=np.uint8)[:, None, None]
    leaders = np.zeros((depth + 1, num_voters, bs), dtype=np.int64)
    np.subtract(num_voters, (alike.view(np.uint8) * from_last).max(axis=1), out=leaders[1:])
    nodes = (np.arange(depth + 1)[:, None, None] * num_voters + leaders) * bs + np.arange(bs)

    node, parent = nodes[1:][there], nodes[:-1][there]
    weight = np.broadcast_to(votes, continuations.shape)[there]
    total = _UNSEEN_VOTES + np.bincount(parent, weight, minlength=nodes.size)
    votes_of = np.bincount(node, weight, minlength=nodes.size).astype(np.float64)
    is_node = there & (leaders[1:] == voter)
    node, parent = nodes[1:][is_node], nodes[:-1][is_node]
    score = np.zeros(nodes.size)
    score[node] = votes_of[node] / total[parent]
    score[_beyond(breadth, node, parent, votes_of)] = 0.0
    chance = score.copy().reshape(nodes.shape)
    chance[0] = 1.0
    for level in range(depth):
        chance[level + 1] *= chance.ravel()[nodes[level]]

    node, rank = _likeliest(chance[1:].reshape(-1, bs), num_nodes)
    node += num_voters * bs
    parent = nodes.ravel()[node - num_voters * bs]
    request = node % bs
    numbers = np.zeros(nodes.size, dtype=np.int64)
    numbers[node] = rank + 1
    tokens = continuations.ravel()[node - num_voters * bs]
    return VotedNodes(request, rank + 1, numbers[parent], tokens, score[node], node // bs % num_voters)


def _likeliest(chance: NDArray[np.float64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The `most` highest of each column: their flat indices, column by column, and their ranks from 0.

    Zeros do not count; of equals the one in the first row is the higher.
    """
    least = np.partition(chance, -most, axis=0)[-most] if most < len(chance) else 0.0
    row, column = np.nonzero((chance >= least) & (chance > 0))
    order = np.lexsort((-chance[row, column], column))
    row, column = row[order], column[order]
    rank = np.arange(len(order)) - np.searchsorted(column, column)
    row, column, rank = row[rank < most], column[rank < most], rank[rank < most]
    return row * chance.shape[1] + column, rank


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
