"""Native code knows addresses alone: what it may not write is refused before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.native_walk import walk_natively
from specgrammar.grammar.rows import MaskRows
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from specgrammar_vllm.chain import fill_chain
from tests.native.test_pool import finished
from tests.native.walks import GUARD, session

TREE = HostTree.from_chains([[0, 0, 39], [0]])
NUM_NODES = 4


def guarded(*shape: int) -> NDArray[np.int32]:
    return np.full(shape, GUARD, np.int32)


def readonly(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


BITMASKS: dict[str, Callable[[], NDArray[Any]]] = {
    "too few rows": lambda: guarded(8, 2)[: NUM_NODES - 1],
    "int64": lambda: guarded(8, 2).astype(np.int64),
    "uint32": lambda: guarded(8, 2).astype(np.uint32),
    "every other row": lambda: guarded(16, 2)[::2],
    "part of each row": lambda: guarded(8, 4)[:, :2],
    "not writeable": lambda: readonly(guarded(8, 2)),
}
OWNERS: dict[str, Callable[[], NDArray[Any]]] = {
    "too few": lambda: guarded(8)[: NUM_NODES - 1],
    "int64": lambda: guarded(8).astype(np.int64),
    "every other one": lambda: guarded(16)[::2],
    "not writeable": lambda: readonly(guarded(8)),
    "of two dimensions": lambda: guarded(8, 2),
}


def walk(rows: MaskRows) -> None:
    walk_natively([session("native", GRAMMARS[3]) for _ in range(2)], TREE, rows, None)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("fault", BITMASKS)
def test_a_bitmask_that_is_not_to_contract_is_refused(fault: str, dense: bool) -> None:
    bitmask = BITMASKS[fault]()
    with pytest.raises(MatcherError, match=r"the bitmask is .*; expected a .*int32 array \[>= 4, words\]"):
        walk(MaskRows(bitmask, NUM_NODES, None if dense else guarded(8)))
    whole = bitmask if bitmask.base is None else bitmask.base
    assert (whole == GUARD).all()


@pytest.mark.parametrize("fault", OWNERS)
def test_owners_that_are_not_to_contract_are_refused(fault: str) -> None:
    bitmask = guarded(8, 2)
    with pytest.raises(MatcherError, match=r"owners are .*; expected a .*int32 array \[>= 4\]"):
        walk(MaskRows(bitmask, NUM_NODES, OWNERS[fault]()))
    assert (bitmask == GUARD).all()


def test_rows_behind_those_that_were_handed_out_count() -> None:
    memory = guarded(NUM_NODES + 2, 2)
    rows = MaskRows(memory[:-1], NUM_NODES, guarded(8))
    rows.num_rows = 2
    with pytest.raises(MatcherError, match=r"expected a .*int32 array \[>= 6, words\]"):
        walk(rows)
    assert (memory == GUARD).all()


@pytest.mark.parametrize("row", [3, 6, 7])
def test_a_chain_that_has_too_few_rows_is_refused(row: int) -> None:
    memory = guarded(8, 2)
    with pytest.raises(MatcherError, match="the bitmask is int32"):
        fill_chain(session("native", GRAMMARS[3]), [0, 39, 1], False, memory[:6], row)
    assert (memory == GUARD).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")
def test_a_walk_without_memory_fails_its_own_request() -> None:
    script = """
import resource
from pathlib import Path
import numpy as np
from specgrammar.grammar.native_walk import walk_natively
from specgrammar.grammar.rows import MaskRows
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.native.walks import session

many = 1 << 23
tokens, links = np.full(many + 1, -1), np.full(many + 1, -1)
tokens[[0, -1]] = 0
tree = HostTree(np.array([0, many, many + 1]), tokens, links, links)
batch = [session("native", GRAMMARS[3]) for _ in range(2)]
rows = MaskRows(np.zeros((many + 1, 2), np.int32), many + 1)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, resource.RLIM_INFINITY))
walk_natively(batch, tree, rows, None)
print(rows.status[[0, -1]], [str(one.error) for one in batch])
"""
    assert finished(script) == "[0 4] ['the grammar backend failed in native code: out of memory', 'None']\n"
