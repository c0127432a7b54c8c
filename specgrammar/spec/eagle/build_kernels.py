"""Building draft trees on the device: one Triton launch, one program per request.

A program compares all candidates with all: how many are better says whether one is kept, how many of those in
front of it are kept says which number it gets. Nothing is sorted. Importing this file needs no triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specgrammar.errors import TreeError
from specgrammar.spec.eagle.build import BuiltTrees
from specgrammar.trees.jit import HAS_TRITON, device_of, jit, require_triton

if TYPE_CHECKING or HAS_TRITON:
    import triton
    import triton.language as tl

MAX_CANDIDATES = 256
"""Most candidates of the kernel, which holds a number for each pair of them."""


@jit
def _build_trees_kernel(
    roots_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    parents_ptr: tl.tensor,
    scores_ptr: tl.tensor,
    out_tokens_ptr: tl.tensor,
    out_parents_ptr: tl.tensor,
    next_token_ptr: tl.tensor,
    next_sibling_ptr: tl.tensor,
    num_candidates: int,
    num_nodes: int,
    block: tl.constexpr,
    node_block: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    exists = i < num_candidates
    place = request * num_candidates + i
    scores = tl.load(scores_ptr + place, mask=exists, other=float("-inf"))
    parents = tl.load(parents_ptr + place, mask=exists, other=-1).to(tl.int32)
    tokens = tl.load(tokens_ptr + place, mask=exists, other=-1)
    # Padding of the output first: what is kept is written over it.
    node = tl.arange(0, node_block)
    out = request * num_nodes + node
    nothing = tl.full([node_block], -1, tl.int64)
    is_out = node < num_nodes
    root = tl.load(roots_ptr + request)
    tl.store(out_tokens_ptr + out, tl.where(node == 0, root, nothing), mask=is_out)
    tl.store(out_parents_ptr + out, nothing, mask=is_out)
    tl.store(next_token_ptr + out, nothing, mask=is_out)
    tl.store(next_sibling_ptr + out, nothing, mask=is_out)
    tl.debug_barrier()

    # [j, i]: rows are the others.
    is_better = (scores[:, None] > scores[None, :]) | (
        (scores[:, None] == scores[None, :]) & (i[:, None] < i[None, :])
    )
    rank = tl.cast(tl.sum(is_better.to(tl.int32), axis=0), tl.int32)
    kept = exists & (rank < num_nodes - 1) & (scores > float("-inf"))
    kept_number = kept.to(tl.int32)
    is_before = i[:, None] < i[None, :]
    number = tl.cast(tl.sum(tl.where(is_before, kept_number[:, None], 0), axis=0), tl.int32) + 1
    is_parent = i[:, None] == parents[None, :]
    # 0, the root, where there is none.
    parent_number = tl.cast(tl.sum(tl.where(is_parent, number[:, None], 0), axis=0), tl.int32)
    written = request * num_nodes + number
    tl.store(out_tokens_ptr + written, tokens, mask=kept)
    tl.store(out_parents_ptr + written, parent_number.to(tl.int64), mask=kept)

    # The lowest number above its own among those that hang below the same node.
    same = kept[:, None] & (parent_number[:, None] == parent_number[None, :])
    later = same & (number[:, None] > number[None, :])
    sibling = tl.cast(tl.min(tl.where(later, number[:, None], num_nodes), axis=0), tl.int32)
    tl.store(next_sibling_ptr + written, tl.where(sibling < num_nodes, sibling, -1).to(tl.int64), mask=kept)
    # A node that no kept sibling precedes is its parent's first child.
    earlier = same & (number[:, None] < number[None, :])
    is_first = kept & (tl.cast(tl.sum(earlier.to(tl.int32), axis=0), tl.int32) == 0)
    tl.store(next_token_ptr + request * num_nodes + parent_number, number.to(tl.int64), mask=is_first)


def build_trees_triton(
    roots: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor, num_nodes: int
) -> BuiltTrees:
    """`build_trees` in one launch on the current stream; it may be captured in a graph.

    Raises:
        TreeError: there are more candidates than `MAX_CANDIDATES`, or a tensor is not as `build_trees` says.
        ConfigError: triton is not installed.
    """
    require_triton("building draft trees on the device")
    bs, num_candidates = tokens.shape
    if max(num_candidates, num_nodes) > MAX_CANDIDATES:
        raise TreeError(
            f"{num_candidates} candidates for trees of {num_nodes} nodes are more than the kernel's "
            f"{MAX_CANDIDATES}; lower topk, num_steps or num_draft_tokens"
        )
    for name, tensor, dtype, shape in (
        ("roots", roots, torch.int64, (bs,)),
        ("tokens", tokens, torch.int64, (bs, num_candidates)),
        ("parents", parents, torch.int64, (bs, num_candidates)),
        ("scores", scores, torch.float32, (bs, num_candidates)),
    ):
        if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous():
            raise TreeError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}; expected "
                f"contiguous {dtype} {list(shape)}"
            )
    result = BuiltTrees(*torch.empty((4, bs, num_nodes), dtype=torch.int64, device=tokens.device))
    if bs == 0:
        return result
    with device_of(tokens):
        _build_trees_kernel[(bs,)](
            roots,
            tokens,
            parents,
            scores,
            result.tokens,
            result.parents,
            result.next_token,
            result.next_sibling,
            num_candidates,
            num_nodes,
            block=triton.next_power_of_2(num_candidates),
            node_block=triton.next_power_of_2(num_nodes),
        )
    return result
