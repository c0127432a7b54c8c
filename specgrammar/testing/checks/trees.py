"""Trees that checks walk, and what is legal at each of their nodes: asked of a fresh matcher every time."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend, NodeStatus, Vocabulary
from specgrammar.testing.checks.base import Draw
from specgrammar.testing.checks.walking import legal_ids
from specgrammar.trees.tree import HostTree

Path = list[int]


class Places:
    """What is legal at each place behind a root, one fresh matcher a place."""

    def __init__(
        self, backend: GrammarBackend, grammar: CompiledGrammar, root: Path, vocabulary: Vocabulary
    ) -> None:
        self.vocabulary = vocabulary
        self._backend, self._grammar, self._root = backend, grammar, root
        self._legal: dict[tuple[int, ...], list[int]] = {}

    def legal(self, path: Path) -> list[int]:
        """The legal ids behind a path of legal tokens; none behind a stop token."""
        key = tuple(path)
        if key not in self._legal:
            fresh = self._backend.matcher(self._grammar)
            for token in (*self._root, *path):
                fresh.accept(token)
            self._legal[key] = legal_ids(fresh, self.vocabulary)
        return self._legal[key]

    def status(self, path: Path | None) -> NodeStatus:
        """What the node at the end of a path is (None: padding); a dead end has ended, as a stop token has."""
        if path is None:
            return NodeStatus.PADDING
        for place, token in enumerate(path):
            if token not in self.legal(path[:place]):
                return NodeStatus.REJECTED
            if token in self.vocabulary.stop_ids:
                return NodeStatus.ENDED if place == len(path) - 1 else NodeStatus.REJECTED
        return NodeStatus.LIVE if self.legal(path) else NodeStatus.ENDED


def some_tree(draw: Draw, places: Places, depth: int) -> tuple[HostTree, list[Path | None]]:
    """A tree of one request, and the path to each node; None for padding. Most nodes are legal."""
    paths: list[Path | None] = [[]]
    stop, *_ = places.vocabulary.stop_ids
    tokens, parents = [draw(st.sampled_from([0, stop]))], [-1]
    for _ in range(draw(st.integers(0, 7))):
        above = [node for node, path in enumerate(paths) if path is not None and len(path) < depth]
        if not above or draw(st.integers(0, 9)) == 9:
            tokens.append(-1)
            parents.append(-1)
            paths.append(None)
            continue
        parent = draw(st.sampled_from(above[::-1]))
        path = paths[parent]
        assert path is not None
        legal = places.legal(path) if places.status(path) == NodeStatus.LIVE else []
        ids = list(range(places.vocabulary.vocab_size))
        tokens.append(draw(st.sampled_from(legal if legal and draw(st.integers(0, 4)) < 4 else ids)))
        parents.append(parent)
        paths.append([*path, tokens[-1]])
    cu_nodes, draft_tokens, links = (np.array(part, np.int64) for part in ([0, len(tokens)], tokens, parents))
    return HostTree.from_parents(cu_nodes, draft_tokens, links), paths


def bits(row: NDArray[np.int32]) -> list[int]:
    """The ids whose bits are set."""
    return [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]
