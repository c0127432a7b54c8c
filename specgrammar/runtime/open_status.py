"""What the nodes of a tree are as far as no grammar need be asked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.trees.tree import HostTree


def open_status(tree: HostTree, vocabulary: Vocabulary) -> NDArray[np.int8]:
    """The status of every node of requests that go on, as far as the grammar need not be asked.

    Native code that follows a target tells the same of the requests that it follows (`native/follow.cpp`).

    Returns:
        int8 `[num_nodes]`: FREE for roots and tokens, ENDED for stop tokens, REJECTED for ids outside the
        vocabulary, PADDING for placeholders.
    """
    tokens = tree.draft_tokens
    status = np.full(len(tokens), NodeStatus.FREE, np.int8)
    status[np.isin(tokens, vocabulary.stop_ids)] = NodeStatus.ENDED
    status[tokens >= vocabulary.vocab_size] = NodeStatus.REJECTED
    status[tokens < 0] = NodeStatus.PADDING
    status[tree.cu_nodes[:-1]] = NodeStatus.FREE
    return status
