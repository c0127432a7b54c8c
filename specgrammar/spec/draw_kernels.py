"""Kernels that decide what follows each node: a draw from its row, or which of its drawn children.

Rows are read in blocks, one program a block, each of which leaves its best token and score; `walk_kernels`
takes the best of them where a path comes along. Noise is made in registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.spec.noise_kernels import gumbel, noise_key, uniform
from specgrammar.trees.jit import HAS_TRITON, jit

if TYPE_CHECKING or HAS_TRITON:
    import triton.language as tl

    from specgrammar.spec.noise_kernels import ACCEPT, RESIDUAL, TARGET

    ENDED = tl.constexpr(int(NodeStatus.ENDED))
    FREE = tl.constexpr(int(NodeStatus.FREE))
    LIVE = tl.constexpr(int(NodeStatus.LIVE))
    NOT_TRIED = tl.constexpr(-2)  # the node's next token is drawn from the target
    ALL_REJECTED = tl.constexpr(-1)  # it is drawn from what the candidates left


@jit
def goes_on(status: tl.tensor) -> Any:
    """Whether something may follow a node."""
    return (status == LIVE) | (status == FREE)


@jit
def any_of(holds: tl.tensor) -> Any:
    """Whether it holds anywhere in a block."""
    return tl.max(holds.to(tl.int32), axis=0) != 0


@jit
def _store_best(score: tl.tensor, start: tl.tensor, scores_ptr: tl.tensor, tokens_ptr: tl.tensor) -> None:
    best, index = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(scores_ptr + place, best)
    tl.store(tokens_ptr + place, (start + index).to(tl.int64))


@jit
def draw_kernel(
    logits_ptr: tl.tensor,  # float [num_nodes, columns]
    stride: int,
    columns: int,
    status_ptr: tl.tensor,  # int8 [num_nodes]
    chosen_ptr: tl.tensor,  # int64 [num_nodes], or None: nodes that tried candidates are left out
    request_ptr: tl.tensor,  # int64 [num_nodes], or None: all are greedy
    position_ptr: tl.tensor,  # int64 [num_nodes], of the token to be drawn
    temperature_ptr: tl.tensor,  # float64 [bs]
    seed_ptr: tl.tensor,  # int64 [bs]
    scores_ptr: tl.tensor,  # float64 [num_nodes, blocks]
    tokens_ptr: tl.tensor,  # int64 [num_nodes, blocks]
    is_scaled: tl.constexpr,  # divided by their temperature
    block: tl.constexpr,
) -> None:
    """The target's token behind each node; +inf as a score says that nothing may be drawn from the row."""
    node = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * block
    column = start + tl.arange(0, block)
    draws = goes_on(tl.load(status_ptr + node))
    if chosen_ptr is not None:
        draws &= tl.load(chosen_ptr + node) == NOT_TRIED
    if draws:
        score = tl.load(logits_ptr + node * stride + column, mask=column < columns, other=float("-inf"))
        score = score.to(tl.float64)
        if request_ptr is not None:
            request = tl.load(request_ptr + node)
            temperature = tl.load(temperature_ptr + request)
            # A block without a legal token needs no noise: most are so where a grammar restricts the row.
            if (temperature > 0) & any_of(score > float("-inf")):
                if not is_scaled:
                    score = score / temperature
                key = noise_key(tl.load(seed_ptr + request), TARGET, tl.load(position_ptr + node))
                score = score + gumbel(key, column)
        score = tl.where(score != score, float("inf"), score)
        _store_best(score, start, scores_ptr, tokens_ptr)


@jit
def _residual(
    probs_ptr: tl.tensor,
    columns: int,
    column: tl.tensor,
    q_ptr: tl.tensor,
    q_stride: int,
    q_columns: int,
    lane: tl.tensor,
    rows: tl.tensor,
    masses: tl.tensor,
    num_rejected: int,
) -> Any:
    """What the first rejected candidates leave of p in some columns; float64."""
    residual = tl.load(probs_ptr + column, mask=column < columns, other=0.0).to(tl.float64)
    for rejected in range(num_rejected):
        row, mass = _entry(rows, lane, rejected), _entry(masses, lane, rejected)
        rest = _minus_q(residual, column, q_ptr, q_stride, q_columns, row)
        residual = tl.where(mass > 0, rest / tl.where(mass > 0, mass, 1.0), residual)
    return residual


@jit
def _entry(values: tl.tensor, lane: tl.tensor, index: int) -> Any:
    return tl.sum(tl.where(lane == index, values, 0), axis=0)


@jit
def _minus_q(
    residual: tl.tensor, column: tl.tensor, q_ptr: tl.tensor, q_stride: int, q_columns: int, row: tl.tensor
) -> Any:
    width = tl.where(row >= 0, q_columns, 0)
    q = tl.load(q_ptr + row * q_stride + column, mask=column < width, other=0.0)
    rest = residual - q.to(tl.float64)
    return tl.where(rest < 0, 0.0, rest)


@jit
def try_candidates_kernel(
    probs_ptr: tl.tensor,  # float32 [num_nodes, columns]
    columns: int,
    q_ptr: tl.tensor,  # float32 [rows, q_columns]
    q_stride: int,
    q_columns: int,
    row_of_node_ptr: tl.tensor,  # int64 [num_nodes]
    draft_tokens_ptr: tl.tensor,
    next_token_ptr: tl.tensor,
    next_sibling_ptr: tl.tensor,
    cu_nodes_ptr: tl.tensor,
    status_ptr: tl.tensor,
    request_ptr: tl.tensor,
    position_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    chosen_ptr: tl.tensor,  # int64 [num_nodes], local to the request
    num_rejected_ptr: tl.tensor,  # int64 [num_nodes]
    rows_ptr: tl.tensor,  # int64 [num_nodes, lanes], the rows of q that rejected candidates were drawn from
    masses_ptr: tl.tensor,  # float64 [num_nodes, lanes], what each of them left
    max_children: int,
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """`rejection.choose_candidates` at each node with drawn children; only a rejection reads the rows."""
    node = tl.program_id(0).to(tl.int64)
    request = tl.load(request_ptr + node)
    root = tl.load(cu_nodes_ptr + request)
    exists = node < tl.load(cu_nodes_ptr + request + 1)
    child = tl.load(next_token_ptr + node, mask=exists, other=-1)
    drawn_from = tl.load(row_of_node_ptr + root + child, mask=child >= 0, other=-1)
    is_tried = (
        goes_on(tl.load(status_ptr + node)) & (drawn_from >= 0) & (tl.load(temperature_ptr + request) > 0)
    )

    chosen = tl.where(is_tried, ALL_REJECTED, NOT_TRIED).to(tl.int64)
    child = tl.where(is_tried, child, -1)
    seed, position = tl.load(seed_ptr + request), tl.load(position_ptr + node)
    probs_ptr += node * columns
    lane = tl.arange(0, lanes)
    rows = tl.full([lanes], -1, tl.int64)
    masses = tl.full([lanes], 0.0, tl.float64)
    num_tried = tl.cast(0, tl.int64)
    while (child >= 0) & (num_tried < max_children):
        token = tl.load(draft_tokens_ptr + root + child)
        row = tl.load(row_of_node_ptr + root + child)
        status = tl.load(status_ptr + root + child)
        inside = (token >= 0) & (token < q_columns) & (row >= 0)
        column = tl.where(inside, token, 0)
        q_token = tl.load(q_ptr + row * q_stride + column, mask=inside, other=0.0).to(tl.float64)
        p_token = _residual(
            probs_ptr, columns, column, q_ptr, q_stride, q_columns, lane, rows, masses, num_tried
        )
        chance = uniform(noise_key(seed, ACCEPT + num_tried, position))
        is_legal = inside & (goes_on(status) | (status == ENDED))
        if is_legal & (q_token > 0) & (chance * q_token < p_token):
            chosen = child
            child = tl.cast(-1, tl.int64)
        else:
            mass = tl.full([1], 0.0, tl.float64)
            for start in range(0, columns, block):
                some = start + tl.arange(0, block)
                left = _residual(
                    probs_ptr, columns, some, q_ptr, q_stride, q_columns, lane, rows, masses, num_tried
                )
                mass += tl.sum(_minus_q(left, some, q_ptr, q_stride, q_columns, row), axis=0)
            rows = tl.where(lane == num_tried, row, rows)
            masses = tl.where(lane == num_tried, mass, masses)
            num_tried += 1
            child = tl.load(next_sibling_ptr + root + child)
    tl.store(chosen_ptr + node, chosen)
    tl.store(num_rejected_ptr + node, num_tried)
    tl.store(rows_ptr + node * lanes + lane, rows)
    tl.store(masses_ptr + node * lanes + lane, masses)


@jit
def draw_residual_kernel(
    probs_ptr: tl.tensor,  # the arguments are those of `try_candidates_kernel`, and its results
    columns: int,
    q_ptr: tl.tensor,
    q_stride: int,
    q_columns: int,
    request_ptr: tl.tensor,
    position_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    chosen_ptr: tl.tensor,
    num_rejected_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    masses_ptr: tl.tensor,
    scores_ptr: tl.tensor,  # float64 [num_nodes, blocks]
    tokens_ptr: tl.tensor,  # int64 [num_nodes, blocks]
    lanes: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The token behind each node whose candidates were all rejected."""
    node = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * block
    column = start + tl.arange(0, block)
    if tl.load(chosen_ptr + node) == ALL_REJECTED:
        lane = tl.arange(0, lanes)
        rows = tl.load(rows_ptr + node * lanes + lane)
        masses = tl.load(masses_ptr + node * lanes + lane)
        num_rejected = tl.load(num_rejected_ptr + node)
        weight = _residual(
            probs_ptr + node * columns,
            columns,
            column,
            q_ptr,
            q_stride,
            q_columns,
            lane,
            rows,
            masses,
            num_rejected,
        )
        score = tl.zeros_like(weight)
        if any_of(weight > 0):
            key = noise_key(
                tl.load(seed_ptr + tl.load(request_ptr + node)), RESIDUAL, tl.load(position_ptr + node)
            )
            score = tl.log(tl.where(weight > 0, weight, 1.0)) + gumbel(key, column)
        score = tl.where(weight > 0, score, float("-inf"))
        _store_best(score, start, scores_ptr, tokens_ptr)
