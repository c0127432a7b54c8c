"""Batches that are walked natively and by Python: the requests, and what comes of them by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.reference import ReferenceBackend, ReferenceCompiled, ReferenceMatcher
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack

SPECS = (*GRAMMARS, GrammarSpec.regex("a(z|zz)|b"), GrammarSpec.regex("z"))
"""The last two have dead ends, as no id spells a "z": below the root, and at it."""
KINDS = ("native", "native behind tokens", "python", "gated", "free", "over")
GUARD = 0x77777777


class Always(FillWorkers):
    """As many threads as there are, for every step."""

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:  # noqa: ARG002
        return self.max_threads


class Walked(NamedTuple):
    """What became of the nodes and the requests of a batch."""

    statuses: list[int]
    rows: dict[int, list[int]]
    """By node; of the dense layout all."""
    errors: list[str]


@cache
def compiled(spec: GrammarSpec) -> ReferenceCompiled:
    return ReferenceBackend(TWO_WORDS).compile(spec)


def matcher(make: type[ReferenceMatcher], spec: GrammarSpec) -> ReferenceMatcher:
    return make(compiled(spec).parser, TWO_WORDS)


def session(kind: str, spec: GrammarSpec, make: type[ReferenceMatcher] = CalledBack) -> GrammarSession:
    """A request of a kind; `make` is what native code moves, where it is of a native one."""
    if kind == "free":
        return GrammarSession(TWO_WORDS)
    if kind in ("python", "gated"):
        gate = Markers(after=((0,),)) if kind == "gated" else None
        return GrammarSession(TWO_WORDS, matcher(ReferenceMatcher, spec), gate=gate)
    made = GrammarSession(TWO_WORDS, matcher(make, spec))
    if kind == "native behind tokens":
        made.commit([token for token in (0, 39) if made.validate([token])])
    elif kind == "over":
        made.abort()
    return made


def sessions(
    kinds: Iterable[tuple[str, GrammarSpec]], make: type[ReferenceMatcher] = CalledBack
) -> list[GrammarSession]:
    return [session(kind, spec, make) for kind, spec in kinds]


def walked(
    batch: Sequence[GrammarSession], tree: HostTree, *, dense: bool = False, workers: FillWorkers | None = None
) -> Walked:
    """Walk a batch in one of the layouts; nothing but its rows is written."""
    num_nodes = len(tree.draft_tokens)
    memory = np.full((num_nodes + 2, TWO_WORDS.num_words), GUARD, np.int32)
    bitmask = memory[1:-1]
    if dense:
        bitmask[:] = -1
    rows = MaskRows(bitmask, num_nodes, None if dense else np.zeros(num_nodes, np.int32))  # what was left there
    fill_rows(batch, tree, rows, workers)
    assert (memory[[0, -1]] == GUARD).all()
    if dense:
        by_node = dict(enumerate(bitmask.tolist()))
    else:
        owned = [row for row in range(rows.num_rows) if rows.owners[row] >= 0]
        by_node = {int(rows.owners[row]): bitmask[row].tolist() for row in owned}
        assert len(by_node) == len(owned), "no node has two rows"
        behind = [row.tobytes() for row in bitmask[rows.num_rows :] if (row != GUARD).any()]
        assert {*behind} <= {row.tobytes() for row in bitmask[: rows.num_rows]}, "but for rows that were moved"
        assert sorted(by_node) == np.flatnonzero(rows.status == NodeStatus.LIVE).tolist()
    return Walked(rows.status.tolist(), by_node, [str(one.error or "") for one in batch])
