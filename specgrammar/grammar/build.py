"""Building the mask of a step: one walk over each request's tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import RequestError, TreeError
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows, RequestNodes
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import NodeStatus, SupportsBatchFill, Vocabulary
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
    batch_fill: SupportsBatchFill | None = None,
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
        batch_fill: a backend that fills many matchers' rows in one call; used for requests without drafts.

    Raises:
        TreeError: the tree is malformed or does not have one request per session.
    """
    if barrier is not None:
        barrier()
    tree = staged.resolve()
    slot = allocator.acquire(len(tree.draft_tokens))
    rows = MaskRows(slot.rows, len(tree.draft_tokens))
    try:
        fill_rows(sessions, tree, rows, batch_fill)
    except BaseException:
        slot.release(None)
        raise
    return GrammarMask(rows, slot, device, vocabulary.vocab_size)


def fill_dense(
    sessions: Sequence[GrammarSession], tree: HostTree, bitmask: NDArray[np.int32]
) -> NDArray[np.int8]:
    """Fill an engine's own buffer: row i for node i; returns the statuses, int8 `[num_nodes]`.

    Rows of nodes that are not live are all ones, the convention of sglang and vLLM. They do not protect
    anything: whoever applies them must not accept a node whose status is not live, free or ended.

    Args:
        sessions: one per request of the tree, in its order.
        tree: the batch's trees.
        bitmask: C-contiguous int32 `[>= num_nodes, num_words]`.
    """
    num_nodes = len(tree.draft_tokens)
    if bitmask.dtype != np.int32 or bitmask.ndim != 2 or not bitmask.flags.c_contiguous:
        raise TreeError("fill_dense: the bitmask must be a C-contiguous int32 array [rows, words]")
    if len(bitmask) < num_nodes:
        raise TreeError(f"fill_dense: the bitmask has {len(bitmask)} rows for {num_nodes} nodes")
    bitmask[:num_nodes] = -1
    rows = MaskRows(bitmask, num_nodes, dense=True)
    fill_rows(sessions, tree, rows)
    return rows.status


def fill_rows(
    sessions: Sequence[GrammarSession],
    tree: HostTree,
    rows: MaskRows,
    batch_fill: SupportsBatchFill | None = None,
) -> None:
    """Walk every request's tree into `rows`."""
    validate_tree(tree)
    if len(sessions) != len(tree.cu_nodes) - 1:
        raise TreeError(f"{len(sessions)} sessions for a tree of {len(tree.cu_nodes) - 1} requests")
    walks = list(zip(sessions, RequestNodes.of(tree), strict=True))
    if batch_fill is not None:
        walks = _fill_lone_roots(walks, rows, batch_fill)
    for session, nodes in walks:
        session.fill(nodes, rows)


Walk = tuple[GrammarSession, RequestNodes]


def _fill_lone_roots(walks: list[Walk], rows: MaskRows, batch_fill: SupportsBatchFill) -> list[Walk]:
    """Fill the requests that have no drafts in one native call; returns the others."""
    lone = [w for w in walks if len(w[1].tokens) == 1 and w[0].finish is None and w[0].engaged]
    if len(lone) < 2:
        return walks
    matchers = [session.cursor.matcher for session, _ in lone if session.cursor is not None]
    failures = batch_fill.fill_bitmasks(matchers, rows.bitmask, range(len(lone)))
    for row, (session, nodes) in enumerate(lone):
        if row in failures:
            rows.num_rows += 1  # a row without an owner; nothing is masked with it
            session.fail(_as_request_error(failures[row]))
        else:
            rows.put(nodes, [NodeStatus.LIVE], [0])
    done = {id(session) for session, _ in lone}
    return [w for w in walks if id(w[0]) not in done]


def _as_request_error(error: Exception) -> RequestError:
    from specgrammar.errors import MatcherError

    return error if isinstance(error, RequestError) else MatcherError(f"{type(error).__name__}: {error}")
