"""`DraftTrie`: one request's drafts of all sources, equal ones joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Origin(NamedTuple):
    """Where a draft comes from, as far as its chance goes.

    Attributes:
        source: which producer, an index into the tree's `sources`.
        kind: which of its drafts: those of one kind are taken to be as good as each other.
    """

    source: int
    kind: int


class DraftTrie:
    """A tree of drafts that grows; node 0 is the root, and a node comes behind its parent.

    Attributes:
        tokens: of each node.
        parents: the parent of each node, -1 for the root.
        chances: the probability that the target takes a node and all above it; 1 for the root.
        origins: where each node comes from: of several sources the one that gives it the best chance.
    """

    def __init__(self, root: int) -> None:
        """The root alone."""
        self.tokens: list[int] = [root]
        self.parents: list[int] = [-1]
        self.chances: list[float] = [1.0]
        self.origins: list[Origin] = [Origin(-1, 0)]
        self._depths = [0]
        self._children: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        """Number of nodes, the root included."""
        return len(self.tokens)

    def add(self, parent: int, token: int, chance: float, origin: Origin) -> int:
        """A child of a node: a new one, or the one that is there.

        Args:
            parent: the node that it comes behind.
            token: its token.
            chance: the probability that the target takes it where it takes the parent.
            origin: where it comes from.

        Returns:
            The node's number. What is below it keeps its chances.
        """
        total = self.chances[parent] * chance
        node = self._children[parent].get(token)
        if node is None:
            node = len(self.tokens)
            self._children[parent][token] = node
            self._children.append({})
            self._depths.append(self._depths[parent] + 1)
            self.tokens.append(token)
            self.parents.append(parent)
            self.chances.append(total)
            self.origins.append(origin)
        elif total > self.chances[node]:
            self.chances[node], self.origins[node] = total, origin
        return node

    def depth(self, node: int) -> int:
        """Draft tokens from the root to a node."""
        return self._depths[node]

    def path(self, node: int) -> list[int]:
        """The tokens from behind the root to a node."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def children(self, node: int) -> Iterator[int]:
        """A node's children."""
        return iter(self._children[node].values())

    def child(self, node: int, token: int) -> int | None:
        """The child with a token."""
        return self._children[node].get(token)

    def likeliest_leaf(self) -> int:
        """The end of the path that goes on with the likeliest child at every node."""
        node = 0
        while children := self._children[node]:
            node = max(children.values(), key=self.chances.__getitem__)
        return node

    def leaves(self) -> list[int]:
        """The nodes without children; the root where there is no draft."""
        return [node for node, children in enumerate(self._children) if not children]

    def kept(self, nodes: Sequence[int]) -> DraftTrie:
        """The trie of some nodes, in ascending order, each of them with its parent and the root among them."""
        kept = DraftTrie(self.tokens[0])
        number = {0: 0}
        for node in nodes:
            if node:
                parent = self.parents[node]
                share = self.chances[node] / self.chances[parent] if self.chances[parent] else 0.0
                number[node] = kept.add(number[parent], self.tokens[node], share, self.origins[node])
        return kept
