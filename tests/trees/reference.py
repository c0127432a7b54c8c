"""Slow and obvious: one node at a time, by walking the links."""

from __future__ import annotations

from specgrammar.trees.tree import HostTree


def slow_parents(tree: HostTree) -> list[list[int]]:
    """Each request's parents, -1 for root and padding."""
    result = []
    for request in range(tree.bs):
        nodes = tree.request_slice(request)
        child = tree.retrieve_next_token[nodes].tolist()
        sibling = tree.retrieve_next_sibling[nodes].tolist()
        parents = [-1] * len(child)
        for node in range(len(child)):
            at = child[node]
            while at != -1:
                parents[at] = node
                at = sibling[at]
        result.append(parents)
    return result


def slow_path(parents: list[int], node: int) -> list[int]:
    """The nodes from `node` up to its root."""
    path = [node]
    while parents[path[-1]] != -1:
        path.append(parents[path[-1]])
    return path


def slow_links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First children and next siblings of one request."""
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node, parent in enumerate(parents):
        children = [k for k, other in enumerate(parents) if other == node]
        next_token[node] = min(children, default=-1)
        later = [k for k, other in enumerate(parents) if other == parent and k > node and parent != -1]
        next_sibling[node] = min(later, default=-1)
    return next_token, next_sibling
