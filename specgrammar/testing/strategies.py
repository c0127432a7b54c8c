"""Hypothesis strategies for what specgrammar works on. Needs `pip install 'specgrammar[testing]'`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from specgrammar.trees.tree import HostTree


@st.composite
def trees(
    draw: st.DrawFn, max_requests: int = 4, max_nodes: int = 12, vocab_size: int = 100, *, padding: bool = True
) -> HostTree:
    """Valid ragged batches of draft trees, from an empty batch up; they shrink to short chains.

    Args:
        draw: given by hypothesis.
        max_requests: most requests of a batch.
        max_nodes: most nodes of a request, root and padding included; at least 1.
        vocab_size: tokens are in `[0, vocab_size)`.
        padding: let any node but a root be padding.
    """
    tokens = st.integers(0, vocab_size - 1)
    node = st.tuples(tokens, st.integers(-1 if padding else 0, max_nodes))
    request = st.tuples(tokens, st.lists(node, max_size=max_nodes - 1))
    cu_nodes, draft_tokens, parents = [0], list[int](), list[int]()
    for root, nodes in draw(st.lists(request, max_size=max_requests)):
        draft_tokens.append(root)
        parents.append(-1)
        real = [0]
        for index, (token, choice) in enumerate(nodes, start=1):
            if choice == -1:
                draft_tokens.append(-1)
                parents.append(-1)
                continue
            draft_tokens.append(token)
            parents.append(real[-1 - choice % len(real)])  # 0, the simplest choice, is the newest node
            real.append(index)
        cu_nodes.append(len(draft_tokens))
    return HostTree.from_parents(
        np.array(cu_nodes, dtype=np.int64),
        np.array(draft_tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
    )
