"""Greedy draws under rows by native code, against masked rows and their argmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.grammar.apply_on_cpu import apply_on_cpu
from specgrammar.grammar.draw_on_cpu import can_draw_on_cpu, draw_on_cpu
from specgrammar.native.library import why_no_core
from specgrammar.spec.sampler import greedy_tokens

needs_native = pytest.mark.skipif(bool(why_no_core()), reason=why_no_core() or "there is native code")
NUM_NODES, NUM_ROWS = 5, 4
VALUES = [0.0, -0.0, 1.0, 1.0, 2.5, -3.0, 3e38, 1e-45, -np.inf]
BAD = [np.inf, np.nan]


@needs_native
@given(
    st.integers(1, 200),
    st.integers(0, 40),
    st.sampled_from([0.02, 0.5, 0.98, 1.0]),
    st.sampled_from([0.0, 0.0, 0.02]),
    st.integers(0, 2**31),
)
def test_it_draws_what_the_masked_argmax_is(
    columns: int, num_padded: int, legal_share: float, bad_share: float, seed: int
) -> None:
    """Whole words of a row go another way than mixed ones; ties, signed zeros, what must not be drawn from."""
    rng = np.random.default_rng(seed)
    values = rng.choice(VALUES, (NUM_NODES, columns + num_padded))
    values = np.where(rng.random(values.shape) < bad_share, rng.choice(BAD, values.shape), values)
    logits = torch.from_numpy(values.astype(np.float32))
    bits = rng.random((NUM_ROWS, (columns + 31) // 32 * 32)) < legal_share  # also behind the columns
    bits[0, : 32 * int(rng.integers(1 + bits.shape[1] // 32))] = True
    rows = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    owners = rng.permutation(NUM_NODES).astype(np.int32)[:NUM_ROWS]
    owners[rng.random(NUM_ROWS) < 0.2] = -1
    masked = logits.clone()
    apply_on_cpu(masked, rows, owners.tolist(), columns)
    expected = greedy_tokens(masked[:, :columns]).tolist()
    before = logits.clone()
    assert can_draw_on_cpu(logits)
    drawn = draw_on_cpu(logits, torch.from_numpy(rows), torch.from_numpy(owners), columns)
    assert drawn == [-1 if owner < 0 else expected[owner] for owner in owners.tolist()]
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32)), "logits were written to"


@needs_native
def test_rows_of_logits_may_lie_apart() -> None:
    logits = torch.arange(80, dtype=torch.float32).view(4, 20)[::2, :8]
    rows, owners = torch.full((2, 1), 0b10010, dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    assert draw_on_cpu(logits, rows, owners, 8) == [4, 4]


def test_it_says_which_logits_it_knows() -> None:
    logits = torch.zeros((4, 8))
    assert can_draw_on_cpu(logits) == (not why_no_core())
    assert not can_draw_on_cpu(logits.bfloat16())
    assert not can_draw_on_cpu(logits.double())
    assert not can_draw_on_cpu(logits[:, ::2])
    assert not can_draw_on_cpu(logits.to("meta"))
