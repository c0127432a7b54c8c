"""The kernel that builds trees gives what is written down in torch, for any candidates."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgrammar.errors import TreeError
from specgrammar.spec.eagle.build import build_trees_torch
from specgrammar.spec.eagle.build_kernels import MAX_CANDIDATES, build_trees_triton

FIELDS = ("tokens", "parents", "next_token", "next_sibling")


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Trees of any form, with ties, equal tokens and candidates that are no drafts."""
    bs, size = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    parents = torch.stack(
        [(torch.rand(size, generator=generator) * torch.arange(1, size + 1)).long() - 1 for _ in range(bs)]
    )
    steps = -torch.randint(0, 3, (bs, size), generator=generator).float() / 4
    steps[torch.rand(bs, size, generator=generator) < draw(st.sampled_from([0.0, 0.2, 1.0]))] = -torch.inf
    scores = steps.clone()
    for i in range(size):
        above = parents[:, i]
        inherited = scores.gather(1, above.clamp(min=0)[:, None])[:, 0]
        scores[:, i] += torch.where(above >= 0, inherited, 0.0)
    tokens = torch.randint(0, 9, (bs, size), generator=generator)
    return torch.arange(bs) + 100, tokens, parents, scores


@given(candidates(), st.integers(1, 24))
@settings(max_examples=60)
def test_the_kernel_gives_what_torch_gives(made: tuple[Tensor, Tensor, Tensor, Tensor], num_nodes: int) -> None:
    ours, right = build_trees_triton(*made, num_nodes), build_trees_torch(*made, num_nodes)
    for name in FIELDS:
        assert torch.equal(getattr(ours, name), getattr(right, name)), name


def test_what_the_kernel_cannot_take_is_named() -> None:
    roots, ids = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 6, dtype=torch.int64)
    scores = torch.zeros(2, 6)
    with pytest.raises(TreeError, match="more than the kernel's 256"):
        build_trees_triton(roots, ids, ids, scores, MAX_CANDIDATES + 1)
    with pytest.raises(TreeError, match=r"scores is torch\.float64"):
        build_trees_triton(roots, ids, ids, scores.double(), 4)
    with pytest.raises(TreeError, match=r"parents is torch\.int64 .* with strides"):
        build_trees_triton(roots, ids, ids.T.contiguous().T, scores, 4)


_COMPILES = """
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from specgrammar.errors import TreeError
from specgrammar.spec.eagle.build_kernels import _build_trees_kernel, build_trees_triton
types = {name: "*i64" if name.endswith("_ptr") else "i32" for name in _build_trees_kernel.arg_names}
types |= {"scores_ptr": "*fp32", "block": "constexpr", "node_block": "constexpr"}
for block, node_block in ((64, 16), (1, 2), (256, 256)):
    constants = {"block": block, "node_block": node_block}
    compiled = compile(ASTSource(_build_trees_kernel, types, constants), target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm
"""


def test_it_compiles_for_a_gpu() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _COMPILES], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
