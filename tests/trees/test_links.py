"""The three implementations of the links, and sglang's, agree on any tree, batch and padding."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, TreeError
from specgrammar.testing.strategies import trees
from specgrammar.trees import jit
from specgrammar.trees.convert import positions, qlen_mask, retrieve_index
from specgrammar.trees.kernels import MAX_NODES, derive_tree_links_triton
from specgrammar.trees.links import derive_tree_links, links_from_parents, parents_from_mask
from specgrammar.trees.links_torch import TreeIndices, derive_tree_links_torch
from specgrammar.trees.tree import HostTree
from tests.sglang_source import load_definitions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_TENSORS: list[Callable[..., TreeIndices]] = [derive_tree_links_torch, derive_tree_links_triton]
COUNTS = st.sampled_from([torch.int32, torch.int64])


def on_tensors(
    mask: NDArray[np.bool_],
    seq_lens: NDArray[np.int64],
    num_nodes: NDArray[np.int64] | None = None,
    dtype: torch.dtype = torch.int64,
) -> list[TreeIndices]:
    """What torch and the kernel say, on the host."""
    counts = None if num_nodes is None else torch.tensor(num_nodes.tolist(), dtype=dtype, device=DEVICE)
    results = []
    for derive in ON_TENSORS:
        result = derive(
            torch.from_numpy(mask).to(DEVICE),
            torch.tensor(seq_lens.tolist(), dtype=dtype, device=DEVICE),
            counts,
        )
        assert all(tensor.dtype == torch.int64 and tensor.shape == mask.shape[:2] for tensor in result)
        results.append(TreeIndices(*(tensor.cpu() for tensor in result)))
    return results


@given(trees(max_nodes=20), st.integers(0, 3), COUNTS)
def test_all_derive_the_links_of_the_tree(tree: HostTree, extra: int, dtype: torch.dtype) -> None:
    width = int(np.diff(tree.cu_nodes).max(initial=1)) + extra
    mask, prefix_lens = qlen_mask(tree, width), np.arange(tree.bs) * 3
    _, next_token, next_sibling = tree.to_dense(width)
    expected_positions = np.repeat(prefix_lens[:, None], width, axis=1)
    expected_positions[retrieve_index(tree, width) >= 0] = positions(tree, prefix_lens)

    host = derive_tree_links(mask)
    assert host[0].dtype == host[1].dtype == np.int64
    assert host[0].tolist() == next_token.tolist()
    assert host[1].tolist() == next_sibling.tolist()
    for result in on_tensors(mask, prefix_lens, dtype=dtype):
        assert result.retrieve_next_token.tolist() == next_token.tolist()
        assert result.retrieve_next_sibling.tolist() == next_sibling.tolist()
        assert result.positions.tolist() == expected_positions.tolist()
        assert result.retrieve_index.reshape(-1).tolist() == list(range(tree.bs * width))


@given(trees(max_nodes=20), st.integers(0, 2**32), COUNTS)
def test_what_padding_holds_does_not_matter(tree: HostTree, seed: int, dtype: torch.dtype) -> None:
    sizes = np.diff(tree.cu_nodes)
    width = int(sizes.max(initial=1)) + 2
    clean = qlen_mask(tree, width)
    exists = np.arange(width) < sizes[:, None]
    noise = np.random.default_rng(seed).random(clean.shape) < 0.5
    mask = np.where(exists[:, :, None] & exists[:, None, :], clean, noise)

    host = derive_tree_links(mask, sizes)
    assert host[0].tolist() == tree.to_dense(width)[1].tolist()
    assert host[1].tolist() == tree.to_dense(width)[2].tolist()
    expected = derive_tree_links_torch(torch.from_numpy(clean), torch.from_numpy(sizes))
    for result in on_tensors(mask, sizes, sizes, dtype):
        assert [tensor.tolist() for tensor in result] == [tensor.tolist() for tensor in expected]


@given(trees(max_nodes=20))
def test_links_follow_from_parents(tree: HostTree) -> None:
    next_token, next_sibling = links_from_parents(tree.cu_nodes, tree.parents())
    assert next_token.tolist() == tree.retrieve_next_token.tolist()
    assert next_sibling.tolist() == tree.retrieve_next_sibling.tolist()


@pytest.fixture(scope="module")
def sglang_links() -> Any:
    name = "_derive_tree_links"
    namespace = {"np": np, "torch": torch}
    return load_definitions("srt/speculative/ngram_worker.py", {name}, namespace)[name]


@given(tree=trees(max_nodes=20), extra=st.integers(0, 3))
def test_links_are_sglangs(sglang_links: Any, tree: HostTree, extra: int) -> None:
    width = int(np.diff(tree.cu_nodes).max(initial=1)) + extra
    mask = qlen_mask(tree, width)
    next_token, next_sibling = sglang_links(mask.reshape(-1), tree.bs, width)  # its mask is flat
    ours = derive_tree_links(mask)
    assert ours[0].tolist() == next_token.tolist()
    assert ours[1].tolist() == next_sibling.tolist()


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 130])
def test_widths_around_the_tiles(width: int) -> None:
    rng = np.random.default_rng(width)
    nodes = np.arange(3 * width)
    parents = rng.integers(0, np.maximum(nodes % width, 1))
    parents[nodes % width == 0] = -1
    tree = HostTree.from_parents(np.arange(4) * width, nodes, parents)
    mask, prefix_lens = qlen_mask(tree), np.array([0, 5, 2**40])
    for result in on_tensors(mask, prefix_lens):
        assert result.retrieve_next_token.reshape(-1).tolist() == tree.retrieve_next_token.tolist()
        assert result.retrieve_next_sibling.reshape(-1).tolist() == tree.retrieve_next_sibling.tolist()
        assert result.positions.reshape(-1).tolist() == positions(tree, prefix_lens).tolist()


def test_deep_chain_on_the_kernel() -> None:
    tree = HostTree.from_chains([range(1024)])
    for result in on_tensors(qlen_mask(tree), np.array([10])):
        assert result.retrieve_next_token[0].tolist() == [*range(1, 1024), -1]
        assert result.retrieve_next_sibling[0].tolist() == [-1] * 1024
        assert result.positions[0].tolist() == list(range(10, 1034))


def test_an_empty_batch_has_no_links() -> None:
    mask = np.zeros((0, 4, 4), dtype=np.bool_)
    assert [links.shape for links in derive_tree_links(mask)] == [(0, 4), (0, 4)]
    assert [links.shape for links in derive_tree_links(mask[:, :0, :0])] == [(0, 0), (0, 0)]
    for result in on_tensors(mask, np.zeros(0, dtype=np.int64)):
        assert all(tensor.shape == (0, 4) for tensor in result)


def test_the_host_refuses_what_is_no_mask() -> None:
    mask = np.ones((2, 3, 3), dtype=np.bool_)
    numbers: Any = mask.astype(np.int64)
    with pytest.raises(TreeError, match=r"bool \[bs, N, N\], not int64 \[2, 3, 3\]"):
        parents_from_mask(numbers)
    with pytest.raises(TreeError, match=r"not bool \[6, 3\]"):
        derive_tree_links(mask.reshape(6, 3))
    with pytest.raises(TreeError, match=r"num_nodes is int64 \[2\] for this mask, not int64 \[3\]"):
        derive_tree_links(mask, np.ones(3, dtype=np.int64))


@pytest.mark.parametrize("derive", ON_TENSORS)
def test_the_launcher_refuses_what_does_not_fit(derive: Callable[..., TreeIndices]) -> None:
    mask = torch.ones((2, 3, 3), dtype=torch.bool, device=DEVICE)
    seq_lens = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    cases: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, str]] = [
        (
            mask.to(torch.uint8),
            seq_lens,
            None,
            r"mask is torch.uint8 \[2, 3, 3\]; expected torch.bool \[bs, N, N\]",
        ),
        (mask.reshape(6, 3), seq_lens, None, r"mask is torch.bool \[6, 3\]"),
        (mask[:, :2], seq_lens, None, r"mask is torch.bool \[2, 2, 3\]"),
        (mask[:, :0, :0], seq_lens, None, "with N at least 1"),
        (mask, seq_lens[:1], None, r"seq_lens is torch.int64 \[1\]; expected int32 or int64 \[2\]"),
        (mask, seq_lens.float(), None, r"seq_lens is torch.float32"),
        (mask, seq_lens, seq_lens[:, None], r"num_nodes is torch.int64 \[2, 1\]"),
        (mask, seq_lens, seq_lens.to("meta"), "num_nodes is on meta, but the mask is on"),
    ]
    for *arguments, message in cases:
        with pytest.raises(TreeError, match=message):
            derive(*arguments)


def test_the_kernel_refuses_strides_and_wide_trees() -> None:
    seq_lens = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    mask = torch.ones((2, 3, 3), dtype=torch.bool, device=DEVICE)
    with pytest.raises(TreeError, match=r"mask has strides \(9, 1, 3\); pass a contiguous tensor"):
        derive_tree_links_triton(mask.transpose(1, 2), seq_lens)
    with pytest.raises(TreeError, match=r"seq_lens has strides \(2,\)"):
        derive_tree_links_triton(mask, torch.zeros(4, dtype=torch.int64, device=DEVICE)[::2])
    wide = torch.zeros((1, MAX_NODES + 1, MAX_NODES + 1), dtype=torch.bool, device=DEVICE)
    with pytest.raises(
        TreeError, match=f"trees of {MAX_NODES + 1} nodes are more than the kernel's {MAX_NODES}"
    ):
        derive_tree_links_triton(wide, seq_lens[:1])


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "HAS_TRITON", False)
    with pytest.raises(ConfigError, match="deriving tree links on the device needs triton: pip install triton"):
        derive_tree_links_triton(torch.ones((1, 1, 1), dtype=torch.bool), torch.zeros(1, dtype=torch.int64))


# What the interpreter cannot show: that the file imports without triton, that a CPU tensor is refused where
# the kernel is compiled, and that the compiler takes the kernel (for a device that need not be there).
_OUTSIDE = {
    "without triton": """
import sys
sys.modules["triton"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find_spec(name, *rest)
from specgrammar.trees.kernels import HAS_TRITON
assert HAS_TRITON is False
""",
    "compiled": """
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from specgrammar.errors import TreeError
from specgrammar.trees import kernels
try:
    kernels.derive_tree_links_triton(torch.ones((1, 1, 1), dtype=torch.bool), torch.zeros(1, dtype=torch.int64))
except TreeError as error:
    assert "mask is on the CPU" in str(error), error
else:
    raise AssertionError("ran on a CPU")
kernel = kernels._derive_tree_links_kernel
for num_nodes in ("*i32", None):
    for width_block, tile in ((1, 1), (64, 64), (2048, 2)):
        constants = {"width_block": width_block, "tile": tile}
        types = {name: "*i64" for name in kernel.arg_names} | {"mask_ptr": "*u8", "width": "i32"}
        types["num_nodes_ptr"] = num_nodes
        if num_nodes is None:
            constants["num_nodes_ptr"] = None
        types |= dict.fromkeys(constants, "constexpr")
        compiled = compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32))
        assert "cubin" in compiled.asm
""",
}


@pytest.mark.parametrize("code", _OUTSIDE.values(), ids=_OUTSIDE.keys())
def test_outside_the_interpreter(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@settings(max_examples=30)
@given(trees(max_nodes=40, max_requests=8, padding=False))
def test_a_larger_batch(tree: HostTree) -> None:
    mask = qlen_mask(tree)
    _, next_token, next_sibling = tree.to_dense()
    for result in on_tensors(mask, np.zeros(tree.bs, dtype=np.int64)):
        assert result.retrieve_next_token.tolist() == next_token.tolist()
        assert result.retrieve_next_sibling.tolist() == next_sibling.tolist()
