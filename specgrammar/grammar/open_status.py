"""What the nodes of a tree are as far as no grammar need be asked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.grammar.native_batch import address
from specgrammar.grammar.session import GrammarSession
from specgrammar.native.library import core
from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.trees.tree import HostTree

# Plain ints: NumPy takes five times as long to see that an enum is one.
_PADDING, _REJECTED, _ENDED, _FREE = map(
    int, (NodeStatus.PADDING, NodeStatus.REJECTED, NodeStatus.ENDED, NodeStatus.FREE)
)


def open_status(tree: HostTree, sessions: Sequence[GrammarSession], vocabulary: Vocabulary) -> NDArray[np.int8]:
    """The status of every node as far as the grammar need not be asked, int8 `[num_nodes]`.

    FREE for roots and tokens, ENDED for stop tokens, REJECTED for ids outside the vocabulary; PADDING for
    placeholders and for requests that are over.
    """
    status = np.empty(len(tree.draft_tokens), np.int8)
    _write_status(tree, vocabulary, status)
    for request in [number for number, session in enumerate(sessions) if session.finish is not None]:
        status[tree.request_slice(request)] = _PADDING
    return status


def _write_status(tree: HostTree, vocabulary: Vocabulary, status: NDArray[np.int8]) -> None:
    """What their tokens say, by one native call where there is one: each of NumPy's takes as long."""
    tokens, cu_nodes = np.ascontiguousarray(tree.draft_tokens), np.ascontiguousarray(tree.cu_nodes)
    if (library := core()) is not None:
        stop_ids = array("q", vocabulary.stop_ids)
        library.specgrammar_open_status(
            *(len(cu_nodes) - 1, address(cu_nodes), address(tokens), vocabulary.vocab_size),
            *(*stop_ids.buffer_info(), address(status)),
        )
        return
    status.fill(_FREE)
    status[np.isin(tokens, vocabulary.stop_ids)] = _ENDED
    status[tokens >= vocabulary.vocab_size] = _REJECTED
    status[tokens < 0] = _PADDING
    status[cu_nodes[:-1]] = _FREE
