"""Building the mask of a step: one walk over each request's tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, TreeError
from specgrammar.grammar.filling import Filling, fill_together
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.staging import BitmaskAllocator, Device, StagedTree
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree


def build_grammar_mask(
    sessions: Sequence[GrammarSession],
    staged: StagedTree,
    allocator: BitmaskAllocator,
    device: Device,
    vocabulary: Vocabulary,
    *,
    barrier: Callable[[], None] | None = None,
) -> GrammarMask:
    """Build the mask of a step in the compact layout: only live nodes have a row.

    Meant to run on the host while the verify forward runs on the device. Every matcher is left as it was
    found. A request that fails (see `GrammarSession.fill`) ends alone: its nodes are dead.

    Args:
        sessions: one per request of the tree, in its order.
        staged: the tree, perhaps still on its way to the host.
        allocator: persistent bitmask memory.
        device: where the mask is applied.
        vocabulary: the target's.
        barrier: called first: moves the grammar over what earlier steps committed (`Ledger.advance_pending`).

    Raises:
        TreeError: the tree is malformed or does not have one request per session.
    """
    if barrier is not None:
        barrier()
    tree = staged.resolve()
    slot = allocator.acquire(len(tree.draft_tokens))
    rows = MaskRows(slot.rows, len(tree.draft_tokens))
    try:
        fill_rows(sessions, tree, rows)
        return GrammarMask(rows, slot, device, vocabulary.vocab_size)
    except BaseException:
        slot.release(None)
        raise


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
    rows = MaskRows(bitmask, num_nodes, dense=True)
    fill_rows(sessions, tree, rows)
    return rows.status


def fill_rows(sessions: Sequence[GrammarSession], tree: HostTree, rows: MaskRows) -> None:
    """Walk every request's tree into `rows`; requests of a backend that can are filled together."""
    validate_tree(tree)
    if len(sessions) != len(tree.cu_nodes) - 1:
        raise TreeError(f"{len(sessions)} sessions for a tree of {len(tree.cu_nodes) - 1} requests")
    together = []
    for session, nodes in zip(sessions, RequestNodes.of(tree), strict=True):
        filling = Filling(session, nodes, rows)
        if session.batch_fill is None:
            filling.run()
        else:
            together.append((session.batch_fill, filling))
    fill_together(together, rows)
