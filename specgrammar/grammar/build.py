"""Building the mask of a step: one walk over each request's tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.staging import BitmaskAllocator, Device, StagedTree


def build_grammar_mask(
    sessions: Sequence[GrammarSession],
    staged: StagedTree,
    allocator: BitmaskAllocator,
    device: Device,
    vocabulary: Vocabulary,
    *,
    barrier: Callable[[], object] | None = None,
    workers: FillWorkers | None = None,
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
        workers: threads to share the requests among, where measurement says that it pays.

    Raises:
        TreeError: the tree is malformed or does not have one request per session.
    """
    if barrier is not None:
        barrier()
    tree = staged.resolve()
    slot = allocator.acquire(len(tree.draft_tokens))
    rows = MaskRows(slot.rows, len(tree.draft_tokens), slot.owners)
    try:
        fill_rows(sessions, tree, rows, workers)
        return GrammarMask(rows, slot, device, vocabulary.vocab_size)
    except BaseException:
        slot.release(None)
        raise
