"""Applying rows to logits: the CPU path and the Triton kernel against the definition, bit by bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.kernels import apply_rows
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.native.library import why_no_core
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.device import InlineDevice

DEVICE = InlineDevice()


def random_rows(seed: int, num_rows: int, num_words: int) -> NDArray[np.int32]:
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**31), 2**31, (num_rows, num_words), dtype=np.int64).astype(np.int32)


def masked_by_definition(
    logits: torch.Tensor, rows: NDArray[np.int32], owners: list[int], columns: int
) -> torch.Tensor:
    expected = logits.clone()
    for row, owner in zip(rows.tolist(), owners, strict=True):
        for column in range(columns):
            if owner >= 0 and not row[column // 32] >> (column % 32) & 1:
                expected[owner, column] = -torch.inf
    return expected


shapes = st.tuples(st.integers(1, 70), st.integers(0, 40), st.integers(1, 6), st.integers(0, 2**31))


@pytest.mark.skipif(bool(why_no_core()), reason=why_no_core() or "there is native code")
@pytest.mark.parametrize("num_columns", [40, 33, 45])
def test_greedy_draws_are_the_masked_argmax_and_leave_the_logits_alone(num_columns: int) -> None:
    """Also where logits are narrower than the vocabulary, or padded, and where a row belongs to nobody."""
    ring = BitmaskRing(DEVICE, 2, num_slots=1)
    slot = ring.acquire(3)
    slot.rows[:3] = random_rows(5, 3, 2)
    rows = MaskRows(slot.rows, 4, slot.owners)
    disowned, *_ = [rows.take(node) for node in (2, 0, 3)]
    rows.disown(disowned)
    mask = GrammarMask(rows, slot, DEVICE, 40)
    logits = torch.randn(4, num_columns, generator=torch.Generator().manual_seed(1))
    logits[:, 40:] = torch.inf  # padding, which is never drawn
    before = logits.clone()
    columns = min(num_columns, 40)
    expected = (
        masked_by_definition(logits[:, :columns], slot.rows[:3].copy(), [-1, 0, 3], columns).argmax(1).tolist()
    )
    with pytest.raises(SpecGrammarError, match="before upload"):
        mask.draw_greedily(logits)
    mask.upload()
    drawn = mask.draw_greedily(logits)
    assert (drawn[0], drawn[3]) == (expected[0], expected[3])
    assert torch.equal(logits, before)
    assert not slot.held, "the memory was not given back"


@given(shapes, st.data(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_a_mask_is_applied_row_by_row_and_padded_columns_are_never_legal(
    shape: tuple[int, int, int, int], data: st.DataObject, dtype: torch.dtype
) -> None:
    vocab_size, extra, num_nodes, seed = shape
    num_words = (vocab_size + 31) // 32
    live = data.draw(st.permutations(range(num_nodes)))[: data.draw(st.integers(0, num_nodes))]
    ring = BitmaskRing(DEVICE, num_words)
    slot = ring.acquire(num_nodes)
    slot.rows[: len(live)] = random_rows(seed, len(live), num_words)
    rows = MaskRows(slot.rows, num_nodes, slot.owners)
    for node in live:
        rows.statuses[node] = NodeStatus.LIVE
        rows.take(node)
    mask = GrammarMask(rows, slot, DEVICE, vocab_size)
    logits = torch.randn(num_nodes, vocab_size + extra, generator=torch.Generator().manual_seed(seed)).to(dtype)
    expected = masked_by_definition(logits, slot.rows[: len(live)], list(live), vocab_size)
    expected[:, vocab_size:] = -torch.inf
    mask.upload()
    mask.apply(logits)
    assert torch.equal(logits, expected)


@given(shapes, st.data(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_the_kernel_agrees_with_the_definition(
    shape: tuple[int, int, int, int], data: st.DataObject, dtype: torch.dtype
) -> None:
    columns, extra, num_nodes, seed = shape
    owners = data.draw(st.lists(st.integers(-1, num_nodes - 1), max_size=4, unique=True))
    rows = random_rows(seed, len(owners), (columns + 31) // 32)
    wide = torch.randn(num_nodes, columns + extra + 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
    logits = wide[:, : columns + extra]  # rows that are not dense
    expected = masked_by_definition(logits, rows, owners, columns)
    apply_rows(logits, torch.from_numpy(rows), torch.tensor(owners, dtype=torch.int32), columns)
    assert torch.equal(logits, expected)


def test_the_kernel_spans_many_blocks() -> None:
    rows = random_rows(3, 2, 313)
    logits = torch.zeros(3, 10_000)
    expected = masked_by_definition(logits, rows, [2, 0], 10_000)
    apply_rows(logits, torch.from_numpy(rows), torch.tensor([2, 0], dtype=torch.int32), 10_000)
    assert torch.equal(logits, expected)


def test_the_compiler_takes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs what the compiler would refuse; compiling needs no device."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from specgrammar.grammar.kernels import _apply_rows_kernel as kernel
pointers = {"bitmask": "*i32", "owners": "*i32"}
numbers = dict.fromkeys(("logits_stride", "num_words", "columns"), "i32")
for logits in ("*fp32", "*bf16", "*fp16"):
    types = {"logits": logits, **pointers, **numbers, "block": "constexpr"}
    compiled = compile(ASTSource(kernel, types, {"block": 4096}), target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": torch.zeros(4, 2, 1).transpose(0, 2)[0]}, "contiguous rows"),
        ({"logits": torch.zeros(2, 40, dtype=torch.int64)}, "float"),
        ({"logits": torch.zeros(40)}, "float"),
        ({"bitmask": torch.zeros(2, 4, dtype=torch.int32)[:, ::2]}, "contiguous int32"),
        ({"bitmask": torch.zeros(2, 2, dtype=torch.int64)}, "contiguous int32"),
        ({"owners": torch.zeros(3, dtype=torch.int32)}, r"int32 \[2\]"),
        ({"owners": torch.zeros(2, dtype=torch.int64)}, r"int32 \[2\]"),
        ({"columns": 65}, "columns = 65"),
        ({"columns": 41}, "columns = 41"),
        ({"columns": -1}, "columns = -1"),
    ],
)
def test_the_launcher_refuses_what_the_kernel_would_read_wrongly(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {
        "logits": torch.zeros(2, 40),
        "bitmask": torch.zeros(2, 2, dtype=torch.int32),
        "owners": torch.zeros(2, dtype=torch.int32),
        "columns": 40,
    }
    with pytest.raises(ValueError, match=words):
        apply_rows(**(arguments | change))  # type: ignore[arg-type]  # wrong on purpose


def test_a_mask_is_used_once_and_in_order() -> None:
    ring = BitmaskRing(DEVICE, 1, num_slots=1)

    def mask() -> GrammarMask:
        slot = ring.acquire(1)
        return GrammarMask(MaskRows(slot.rows, 1, slot.owners), slot, DEVICE, 8)

    fresh = mask()
    with pytest.raises(SpecGrammarError, match=r"call mask\.upload"):
        fresh.apply(torch.zeros(1, 8))
    fresh.upload()
    with pytest.raises(SpecGrammarError, match="upload twice"):
        fresh.upload()
    with pytest.raises(SpecGrammarError, match="expected a row for each of 1 nodes"):
        fresh.apply(torch.zeros(2, 8))
    fresh.apply(torch.zeros(1, 8))
    with pytest.raises(SpecGrammarError, match="belongs to a later step"):
        _ = fresh.bitmask
    dropped = mask()  # the slot was given back by apply
    dropped.discard()
    dropped.discard()
    with mask() as forgotten:  # and by discard
        forgotten.upload()
    mask()  # and by leaving the block
