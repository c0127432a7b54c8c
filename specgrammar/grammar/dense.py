"""Masks in the order and the buffer of an engine that owns them; no torch, no device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError
from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.rows import MaskRows
from specgrammar.trees.tree import HostTree

if TYPE_CHECKING:
    from specgrammar.grammar.session import GrammarSession


def fill_dense(
    sessions: Sequence[GrammarSession], tree: HostTree, bitmask: NDArray[np.int32]
) -> NDArray[np.int8]:
    """Fill an engine's own buffer: row i for node i; returns the statuses, int8 `[num_nodes]`.

    Rows of nodes that are not live are all ones, the convention of sglang and vLLM. They do not protect
    anything: whoever applies them must not accept a node whose status is not live, free or ended.

    Args:
        sessions: one per request of the tree, in its order.
        tree: the batch's trees.
        bitmask: C-contiguous, writeable int32 `[>= num_nodes, num_words]`.

    Raises:
        TreeError: the tree is malformed or does not have one request per session.
        ConfigError: the buffer is not to contract.
    """
    num_nodes = len(tree.draft_tokens)
    num_words = sessions[0].vocabulary.num_words if sessions else 0
    flags = bitmask.flags
    if bitmask.dtype != np.int32 or bitmask.ndim != 2 or not flags.c_contiguous or not flags.writeable:
        raise ConfigError("fill_dense: the bitmask must be a C-contiguous, writeable int32 array [rows, words]")
    if len(bitmask) < num_nodes or (sessions and bitmask.shape[1] != num_words):
        raise ConfigError(
            f"fill_dense: the bitmask is {list(bitmask.shape)}; expected at least {num_nodes} rows (nodes) "
            f"of {num_words} words (vocabulary)"
        )
    bitmask[:num_nodes] = -1
    rows = MaskRows(bitmask, num_nodes)
    fill_rows(sessions, tree, rows)
    return rows.status
