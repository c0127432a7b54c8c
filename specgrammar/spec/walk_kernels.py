"""Kernels for what verification needs of the trees themselves: where nodes are, and the walk down the paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgrammar.spec.draw_kernels import any_of, goes_on
from specgrammar.trees.jit import HAS_TRITON, jit

if TYPE_CHECKING or HAS_TRITON:
    import triton.language as tl

    from specgrammar.spec.draw_kernels import ENDED, NOT_TRIED


@jit
def link_parents_kernel(
    next_token_ptr: tl.tensor,
    next_sibling_ptr: tl.tensor,
    cu_nodes_ptr: tl.tensor,
    request_ptr: tl.tensor,  # int64 [num_nodes], written; nodes behind the last request count as its
    parent_ptr: tl.tensor,  # int64 [num_nodes], filled with -1; flat
    num_nodes: int,
    bs: int,
    bs_block: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Each node finds its request, and tells its children who it is."""
    node = tl.program_id(0) * block + tl.arange(0, block)
    request = tl.zeros([block], tl.int64)
    for start in range(0, bs, bs_block):
        some = start + tl.arange(0, bs_block)
        end = tl.load(cu_nodes_ptr + 1 + some, mask=some < bs, other=num_nodes)
        request += tl.sum((end[None, :] <= node[:, None]).to(tl.int64), axis=1)
    request = tl.minimum(request, bs - 1)
    tl.store(request_ptr + node, request, mask=node < num_nodes)
    root = tl.load(cu_nodes_ptr + request)
    exists = node < tl.load(cu_nodes_ptr + request + 1)
    child = tl.load(next_token_ptr + node, mask=exists, other=-1)
    while any_of(child >= 0):
        tl.store(parent_ptr + root + child, node.to(tl.int64), mask=child >= 0)
        child = tl.load(next_sibling_ptr + root + child, mask=child >= 0, other=-1)


@jit
def positions_kernel(
    parent_ptr: tl.tensor,
    request_ptr: tl.tensor,
    num_tokens_ptr: tl.tensor,  # int64 [bs]
    position_ptr: tl.tensor,  # int64 [num_nodes], written: of the token behind each node
    num_nodes: int,
    block: tl.constexpr,
) -> None:
    """Each node climbs to its root and counts."""
    node = tl.program_id(0) * block + tl.arange(0, block)
    exists = node < num_nodes
    position = tl.load(num_tokens_ptr + tl.load(request_ptr + node, mask=exists, other=0))
    ancestor = tl.load(parent_ptr + node, mask=exists, other=-1)
    while any_of(ancestor >= 0):
        position += (ancestor >= 0).to(tl.int64)
        ancestor = tl.load(parent_ptr + ancestor, mask=ancestor >= 0, other=-1)
    tl.store(position_ptr + node, position, mask=exists)


@jit
def walk_kernel(
    draft_tokens_ptr: tl.tensor,
    next_token_ptr: tl.tensor,
    next_sibling_ptr: tl.tensor,
    cu_nodes_ptr: tl.tensor,
    status_ptr: tl.tensor,
    scores_ptr: tl.tensor,  # float64 [num_nodes, num_blocks], see `draw_kernels`
    tokens_ptr: tl.tensor,  # int64 [num_nodes, num_blocks]
    num_blocks: int,
    chosen_ptr: tl.tensor,  # int64 [num_nodes], or None: no node has tried candidates
    accept_index_ptr: tl.tensor,
    accept_length_ptr: tl.tensor,
    predict_ptr: tl.tensor,
    kv_source_ptr: tl.tensor,
    kv_destination_ptr: tl.tensor,
    max_depth: int,
    blocks: tl.constexpr,
    width_block: tl.constexpr,
) -> None:
    """One program a request, which goes from its root to where its path ends."""
    request = tl.program_id(0).to(tl.int64)
    root = tl.load(cu_nodes_ptr + request)
    exists = tl.load(cu_nodes_ptr + request + 1) > root
    place = tl.arange(0, width_block)
    part = tl.arange(0, blocks)
    path = tl.where((place == 0) & exists, 0, -1).to(tl.int64)
    length = tl.cast(0, tl.int64)
    bonus = tl.cast(-1, tl.int64)
    node = root
    walking = goes_on(tl.load(status_ptr + root, mask=exists, other=0))
    while walking:
        found = tl.cast(NOT_TRIED, tl.int64)
        num_parts = num_blocks
        if chosen_ptr is not None:
            found = tl.load(chosen_ptr + node)
            num_parts = tl.where(found >= 0, 0, num_blocks)  # nothing was drawn where a candidate was taken
        score = tl.load(scores_ptr + node * num_blocks + part, mask=part < num_parts, other=float("-inf"))
        best, index = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
        offers = (best > float("-inf")) & (best < float("inf"))
        token = tl.load(tokens_ptr + node * num_blocks + index, mask=offers, other=-1)
        token = tl.load(draft_tokens_ptr + root + found, mask=found >= 0, other=token)
        child = tl.load(next_token_ptr + node, mask=offers & (found == NOT_TRIED), other=-1)
        while child >= 0:
            status = tl.load(status_ptr + root + child)
            fits = goes_on(status) | (status == ENDED)
            fits = fits & (tl.load(draft_tokens_ptr + root + child) == token)
            found = tl.where(fits, child, found)
            child = tl.where(fits, -1, tl.load(next_sibling_ptr + root + child))
        found = tl.where(length < max_depth, found, -1)
        accepted = found >= 0
        length += accepted.to(tl.int64)
        path = tl.where(accepted & (place == length), found, path)
        bonus = tl.where(accepted, -1, token)
        node = root + tl.where(accepted, found, 0)
        walking = accepted & goes_on(tl.load(status_ptr + node))
    is_kept = path >= 0
    out = request * (max_depth + 1) + place
    inside = place <= max_depth
    tl.store(accept_index_ptr + out, path, mask=inside)
    tl.store(kv_source_ptr + out, tl.where(is_kept, root + path, -1), mask=inside)
    tl.store(kv_destination_ptr + out, tl.where(is_kept, place, -1).to(tl.int64), mask=inside)
    tl.store(accept_length_ptr + request, length)
    tl.store(predict_ptr + request, bonus)
