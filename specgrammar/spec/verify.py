"""Verification on a device: from masked logits to accepted paths in a few launches, unseen by the host.

    places        each node's request and position           where rows are sampled
    candidates    which drawn child each node takes          rejection sampling
    draws         the target's token behind each node        all rows in blocks, noise made where it is used
    walk          from each root to the end of its path

The decode step uses it where its logits are on an accelerator (`accept_on_device`). The paths are those that
`accept` finds on the host.

Nodes behind which nothing may follow are skipped. All shapes are fixed, so that the launches may be captured in
a graph, and everything is ordered on the current stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from specgrammar.errors import TreeError
from specgrammar.spec.draw_kernels import draw_kernel, draw_residual_kernel, try_candidates_kernel
from specgrammar.spec.verify_inputs import (
    DeviceForest,
    DevicePaths,
    DeviceProposals,
    DeviceSampling,
    check_verify_inputs,
)
from specgrammar.spec.verify_truncate import scaled_logits, target_probs
from specgrammar.spec.walk_kernels import link_parents_kernel, positions_kernel, walk_kernel
from specgrammar.trees.jit import HAS_TRITON, device_of, require_triton

if TYPE_CHECKING or HAS_TRITON:
    import triton

_BLOCK = 2048
"""Columns that one program draws from: a row of 128k is spread over 63 programs."""
_NODE_BLOCK = 64
"""Nodes, or requests, that a program looks at together."""


class _Places(NamedTuple):
    """int64 `[num_nodes]` each."""

    request: torch.Tensor
    position: torch.Tensor


class _Candidates(NamedTuple):
    """What `try_candidates_kernel` read (p) and found, a row a node."""

    probs: torch.Tensor
    chosen: torch.Tensor
    num_rejected: torch.Tensor
    rows: torch.Tensor
    masses: torch.Tensor


class _Draws(NamedTuple):
    """The best score and its token of each block of each row: float64 and int64 `[num_nodes, num_blocks]`.

    Only rows of nodes behind which a token may be drawn are written.
    """

    scores: torch.Tensor
    tokens: torch.Tensor


def verify_triton(
    forest: DeviceForest,
    logits: torch.Tensor,
    status: torch.Tensor,
    sampling: DeviceSampling | None = None,
    sampled: DeviceProposals | None = None,
) -> DevicePaths:
    """Find the path of each tree that the target agrees with.

    Arguments and result are those of `verify_torch.verify_torch`.

    Raises:
        TreeError: an argument is not as stated, or is where the kernels cannot run.
        ConfigError: triton is not installed.
    """
    require_triton("verifying trees on the device")
    check_verify_inputs(forest, logits, status, sampling, sampled)
    if logits.device.type == "cpu" and isinstance(walk_kernel, triton.JITFunction):
        raise TreeError(
            "logits are on the CPU, where Triton only runs with TRITON_INTERPRET=1 set before it is imported; "
            "use accept.accept, or verify_torch"
        )
    with device_of(logits):
        if sampling is None or forest.num_nodes == 0:
            return _walk(forest, status, _draw(logits, status), None)
        places = _find_places(forest, sampling)
        scaled = scaled_logits(logits, places.request, sampling) if sampling.truncates else logits
        if sampled is None:
            return _walk(forest, status, _draw(scaled, status, sampling, places), None)
        probs = target_probs(logits, places.request, sampling)
        candidates = _try_candidates(forest, status, sampling, sampled, places, probs)
        draws = _draw(scaled, status, sampling, places, candidates.chosen)
        _draw_residuals(sampling, sampled, places, candidates, draws)
        return _walk(forest, status, draws, candidates.chosen)


def _find_places(forest: DeviceForest, sampling: DeviceSampling) -> _Places:
    num_nodes, bs = forest.num_nodes, forest.bs
    request, position = (torch.empty_like(forest.draft_tokens) for _ in range(2))
    parent = torch.full_like(request, -1)
    grid = (triton.cdiv(num_nodes, _NODE_BLOCK),)
    link_parents_kernel[grid](
        forest.retrieve_next_token,
        forest.retrieve_next_sibling,
        forest.cu_nodes,
        request,
        parent,
        num_nodes,
        bs,
        bs_block=_NODE_BLOCK,
        block=_NODE_BLOCK,
    )
    positions_kernel[grid](parent, request, sampling.num_tokens, position, num_nodes, block=_NODE_BLOCK)
    return _Places(request, position)


def _draw(
    logits: torch.Tensor,
    status: torch.Tensor,
    sampling: DeviceSampling | None = None,
    places: _Places | None = None,
    chosen: torch.Tensor | None = None,
) -> _Draws:
    num_nodes, columns = logits.shape
    block, num_blocks = _blocks(columns)
    scores = torch.empty((num_nodes, num_blocks), dtype=torch.float64, device=logits.device)
    draws = _Draws(scores, torch.empty_like(scores, dtype=torch.int64))
    if num_nodes:
        draw_kernel[num_nodes, num_blocks](
            logits,
            logits.stride(0),
            columns,
            status,
            chosen,
            *((None, None) if places is None else places),
            *((None, None) if sampling is None else (sampling.temperature, sampling.seed)),
            *draws,
            is_scaled=logits.dtype == torch.float64,
            block=block,
        )
    return draws


def _try_candidates(
    forest: DeviceForest,
    status: torch.Tensor,
    sampling: DeviceSampling,
    sampled: DeviceProposals,
    places: _Places,
    probs: torch.Tensor,
) -> _Candidates:
    num_nodes, lanes = forest.num_nodes, triton.next_power_of_2(sampled.max_children)
    chosen, num_rejected = (torch.empty_like(forest.draft_tokens) for _ in range(2))
    rows = chosen.new_empty((num_nodes, lanes))
    found = _Candidates(probs, chosen, num_rejected, rows, torch.empty_like(rows, dtype=torch.float64))
    try_candidates_kernel[(num_nodes,)](
        probs,
        probs.shape[1],
        sampled.q,
        sampled.q.stride(0),
        sampled.q.shape[1],
        sampled.row_of_node,
        forest.draft_tokens,
        forest.retrieve_next_token,
        forest.retrieve_next_sibling,
        forest.cu_nodes,
        status,
        *places,
        sampling.temperature,
        sampling.seed,
        *found[1:],
        sampled.max_children,
        lanes=lanes,
        block=_blocks(probs.shape[1])[0],
    )
    return found


def _draw_residuals(
    sampling: DeviceSampling,
    sampled: DeviceProposals,
    places: _Places,
    candidates: _Candidates,
    draws: _Draws,
) -> None:
    num_nodes, num_blocks = draws.scores.shape
    columns = candidates.probs.shape[1]
    draw_residual_kernel[num_nodes, num_blocks](
        candidates.probs,
        columns,
        sampled.q,
        sampled.q.stride(0),
        sampled.q.shape[1],
        *places,
        sampling.seed,
        *candidates[1:],
        *draws,
        lanes=candidates.rows.shape[1],
        block=_blocks(columns)[0],
    )


def _walk(
    forest: DeviceForest, status: torch.Tensor, draws: _Draws, chosen: torch.Tensor | None
) -> DevicePaths:
    bs, width = forest.bs, forest.max_depth + 1
    lengths, paths = forest.cu_nodes.new_empty((2, bs)), forest.cu_nodes.new_empty((3, bs, width))
    result = DevicePaths(paths[0], lengths[0], lengths[1], paths[1], paths[2])
    if bs:
        num_blocks = draws.scores.shape[1]
        walk_kernel[(bs,)](
            forest.draft_tokens,
            forest.retrieve_next_token,
            forest.retrieve_next_sibling,
            forest.cu_nodes,
            status,
            *draws,
            num_blocks,
            chosen,
            *result,
            forest.max_depth,
            blocks=triton.next_power_of_2(num_blocks),
            width_block=triton.next_power_of_2(width),
        )
    return result


def _blocks(columns: int) -> tuple[int, int]:
    """How wide the blocks of a row are, and how many it has."""
    block = min(_BLOCK, triton.next_power_of_2(columns))
    return block, triton.cdiv(columns, block)
