"""The most probable chain of a draft tree, for an engine that verifies chains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from specgrammar.errors import TreeError
from specgrammar.trees.tree import DraftTree


def chains_of(tree: DraftTree) -> Iterator[list[int]]:
    """For each request the drafts of one path from its root: the one from which most tokens are expected.

    A node is accepted with its score if its parent is; a score that is not known counts as 1. Where paths are
    equal the first child is taken.

    Raises:
        TreeError: a device made the tree, or its proposals were sampled.
    """
    if tree.host is None or tree.sampled is not None:
        raise TreeError("a chain is taken of trees that the host made of chosen tokens, not of sampled ones")
    host = tree.host
    tokens, child, sibling = (
        array.tolist() for array in (host.draft_tokens, host.retrieve_next_token, host.retrieve_next_sibling)
    )
    scores = [1.0] * len(tokens) if tree.score is None else tree.score.tolist()
    for begin, end in pairwise(host.cu_nodes.tolist()):
        # Links point to higher numbers, so what is behind a node is known when the node is reached.
        best, expected = [-1] * (end - begin), [0.0] * (end - begin)
        for node in range(end - begin - 1, -1, -1):
            most, other = 0.0, child[begin + node]
            while other >= 0:
                if expected[other] > most or best[node] < 0:
                    best[node], most = other, expected[other]
                other = sibling[begin + other]
            score = scores[begin + node]
            expected[node] = (1.0 if score != score else score) * (1 + most)
        chain = []
        node = best[0]
        while node >= 0 and tokens[begin + node] >= 0:
            chain.append(tokens[begin + node])
            node = best[node]
        yield chain
