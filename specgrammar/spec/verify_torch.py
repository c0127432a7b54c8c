"""Verification in plain torch: what the kernels of `verify` have to give, on every device that torch has.

Every node decides for itself, on the path or not: the token that the target takes behind it, or which of its
drawn children. Then each request walks. Nothing waits for the device and all shapes are fixed, at the price of
work for nodes that nobody reaches and of temporaries of `[num_nodes, columns]` and `[num_nodes, num_nodes]`.

Nodes are numbers in the flat arrays here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.spec.noise import GAMMA, LANES, Stream, gumbel, mix64
from specgrammar.spec.verify_inputs import (
    DeviceForest,
    DevicePaths,
    DeviceProposals,
    DeviceSampling,
    check_verify_inputs,
)
from specgrammar.spec.verify_truncate import scaled_logits, target_probs

_NOT_TRIED = -2


class _Places(NamedTuple):
    """Where each node is: int64 `[num_nodes]`; the parent is -1 for roots and padding."""

    request: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor


class _Decisions(NamedTuple):
    """What follows each node: int64 `[num_nodes]`.

    `child` is the accepted candidate, -1 where all were rejected, and `_NOT_TRIED` where the token decides.
    """

    token: torch.Tensor
    child: torch.Tensor


def verify_torch(
    forest: DeviceForest,
    logits: torch.Tensor,
    status: torch.Tensor,
    sampling: DeviceSampling | None = None,
    sampled: DeviceProposals | None = None,
) -> DevicePaths:
    """Find the path of each tree that the target agrees with: `accept.accept` without a look from the host.

    Args:
        forest: the trees.
        logits: float16, bfloat16 or float32 `[num_nodes, columns]`, -inf where a token is forbidden, each row
            contiguous. Not changed.
        status: int8 `[num_nodes]` of `NodeStatus`.
        sampling: how requests sample; None if all are greedy.
        sampled: what nodes were drawn from: their siblings are verified by rejection sampling. None for
            target-only.

    Raises:
        TreeError: an argument is not as stated.
    """
    check_verify_inputs(forest, logits, status, sampling, sampled)
    places = _places(forest)
    tokens = _finite_argmax(logits) if sampling is None else _draw(logits, places, sampling)
    decisions = _Decisions(tokens, torch.full_like(tokens, _NOT_TRIED))
    if sampling is not None and sampled is not None:
        decisions = _try_candidates(forest, places, logits, status, sampling, sampled, decisions)
    return _walk(forest, places, status, decisions)


def event_keys(seed: torch.Tensor, position: torch.Tensor, stream: Stream, lane: int = 0) -> torch.Tensor:
    """`noise.noise_keys` of tensors."""
    word = torch.full_like(seed, lane + stream * LANES)
    state = mix64(mix64(seed) + (word + 1) * GAMMA)
    return mix64(state + (position + 1) * GAMMA)


def _places(forest: DeviceForest) -> _Places:
    num_nodes = forest.num_nodes
    node = torch.arange(num_nodes, device=forest.draft_tokens.device)
    request = torch.searchsorted(forest.cu_nodes[1:], node, right=True).clamp(max=forest.bs - 1)
    root, exists = forest.cu_nodes[request], node < forest.cu_nodes[request + 1]

    def who_links_to(links: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
        target = torch.where(exists & (links >= 0), links + root, num_nodes)
        return torch.nn.functional.pad(otherwise, (0, 1)).scatter(0, target, node)[:num_nodes]

    first_sibling = who_links_to(forest.retrieve_next_sibling, node)
    rounds = range(num_nodes.bit_length())
    for _ in rounds:
        first_sibling = first_sibling[first_sibling]
    parent = who_links_to(forest.retrieve_next_token, torch.full_like(node, -1))[first_sibling]
    depth = (parent >= 0).to(torch.int64)
    ancestor = torch.where(parent >= 0, parent, node)
    for _ in rounds:
        depth = depth + depth[ancestor]
        ancestor = ancestor[ancestor]
    return _Places(request, parent, depth)


def _draw(logits: torch.Tensor, places: _Places, sampling: DeviceSampling) -> torch.Tensor:
    scaled = scaled_logits(logits, places.request, sampling)
    position = sampling.num_tokens[places.request] + places.depth
    keys = event_keys(sampling.seed[places.request], position, Stream.TARGET)
    is_greedy = (sampling.temperature[places.request] == 0)[:, None]
    return _finite_argmax(torch.where(is_greedy, scaled, _noisy(scaled, keys)))


def _noisy(log_weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    tokens = torch.arange(log_weights.shape[1], device=keys.device).expand(log_weights.shape)
    return log_weights + gumbel(keys[:, None], tokens)


def _finite_argmax(scores: torch.Tensor) -> torch.Tensor:
    best, token = scores.max(dim=-1)
    return torch.where(best.isfinite(), token, -1)


def _try_candidates(
    forest: DeviceForest,
    places: _Places,
    logits: torch.Tensor,
    status: torch.Tensor,
    sampling: DeviceSampling,
    sampled: DeviceProposals,
    otherwise: _Decisions,
) -> _Decisions:
    """`rejection.choose_candidates` at every node with drawn children, and a draw from what it leaves."""
    seed = sampling.seed[places.request]
    position = sampling.num_tokens[places.request] + places.depth
    children = _children(places, sampled.max_children)
    is_tried = (_at(sampled.row_of_node, children[:, 0]) >= 0) & (sampling.temperature[places.request] > 0)
    residual = target_probs(logits, places.request, sampling).double()
    # A row of zeros for candidates without a row of q, which q's missing columns are, too.
    q = torch.nn.functional.pad(sampled.q, (0, logits.shape[1] - sampled.q.shape[1], 0, 1))
    choice = torch.full_like(position, -1)
    for lane, child in enumerate(children.unbind(dim=1)):
        q_rows = q[_at(sampled.row_of_node, child)].double()
        token = _at(forest.draft_tokens, child)
        inside = (token >= 0) & (token < logits.shape[1])
        column = torch.where(inside, token, 0)[:, None]
        p_token, q_token = residual.gather(1, column)[:, 0], q_rows.gather(1, column)[:, 0]
        chance = _uniform(event_keys(seed, position, Stream.ACCEPT, lane))
        is_legal = inside & _may_be_accepted(_at(status, child, NodeStatus.PADDING))
        is_open = (choice < 0) & (child >= 0)
        accepted = is_open & is_legal & (q_token > 0) & (chance * q_token < p_token)
        choice = torch.where(accepted, child, choice)
        rest = (residual - q_rows).clamp(min=0)
        mass = rest.cumsum(dim=-1)[:, -1:]
        rejected = (is_open & ~accepted)[:, None]
        residual = torch.where(rejected & (mass > 0), rest / mass, residual)
    replacement = _finite_argmax(_noisy(residual.log(), event_keys(seed, position, Stream.RESIDUAL)))
    token = torch.where(choice >= 0, _at(forest.draft_tokens, choice), replacement)
    return _Decisions(
        torch.where(is_tried, token, otherwise.token), torch.where(is_tried, choice, otherwise.child)
    )


def _children(places: _Places, max_children: int) -> torch.Tensor:
    """The first children of each node in their order, int64 `[num_nodes, max_children]`, -1 for none."""
    parent, num_nodes = places.parent, len(places.parent)
    node = torch.arange(num_nodes, device=parent.device)
    lane = ((parent[:, None] == parent) & (node < node[:, None])).sum(dim=1)
    is_child = (parent >= 0) & (lane < max_children)
    slot = torch.where(is_child, parent * max_children + lane, num_nodes * max_children)
    children = torch.full((num_nodes * max_children + 1,), -1, dtype=torch.int64, device=parent.device)
    return children.scatter(0, slot, node)[:-1].view(num_nodes, max_children)


def _walk(forest: DeviceForest, places: _Places, status: torch.Tensor, decisions: _Decisions) -> DevicePaths:
    root = forest.cu_nodes[:-1]
    exists = forest.cu_nodes[1:] > root
    node = torch.where(exists, root, -1)
    path = [node]
    bonus = torch.full_like(root, -1)
    goes_on = _goes_on(_at(status, node, NodeStatus.PADDING))
    for depth in range(forest.max_depth + 1):
        token, child = _at(decisions.token, node), _at(decisions.child, node)
        child = torch.where(child == _NOT_TRIED, _find_child(forest, places, status, node, token), child)
        if depth == forest.max_depth:
            child = torch.full_like(child, -1)
        bonus = torch.where(goes_on & (child < 0), token, bonus)
        node = torch.where(goes_on, child, -1)
        path.append(node)
        goes_on = _goes_on(_at(status, node, NodeStatus.PADDING))
    source = torch.stack(path[:-1], dim=1)
    is_kept = source >= 0
    place = torch.arange(source.shape[1], device=source.device)
    return DevicePaths(
        accept_index=torch.where(is_kept, source - root[:, None], -1),
        accept_length=is_kept[:, 1:].sum(dim=1),
        predict=bonus,
        kv_source=source,
        kv_destination=torch.where(is_kept, place, -1),
    )


def _find_child(
    forest: DeviceForest, places: _Places, status: torch.Tensor, node: torch.Tensor, token: torch.Tensor
) -> torch.Tensor:
    """The first child of each node that may be accepted and carries the token, -1 for none."""
    fits = _may_be_accepted(status) & (places.parent == node[:, None]) & (node[:, None] >= 0)
    fits &= (forest.draft_tokens == token[:, None]) & (token[:, None] >= 0)
    every = torch.arange(forest.num_nodes + 1, device=node.device)
    # One more, which is there for all: the lowest that fits, or none.
    first = torch.where(torch.nn.functional.pad(fits, (0, 1), value=True), every, forest.num_nodes).amin(dim=1)
    return torch.where(first < forest.num_nodes, first, -1)


def _may_be_accepted(status: torch.Tensor) -> torch.Tensor:
    return _goes_on(status) | (status == NodeStatus.ENDED)


def _goes_on(status: torch.Tensor) -> torch.Tensor:
    return (status == NodeStatus.LIVE) | (status == NodeStatus.FREE)


def _uniform(keys: torch.Tensor) -> torch.Tensor:
    return (((keys >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def _at(values: torch.Tensor, index: torch.Tensor, otherwise: int = -1) -> torch.Tensor:
    """`values[index]`, and `otherwise` where the index is -1."""
    return torch.nn.functional.pad(values, (0, 1), value=otherwise)[torch.where(index < 0, len(values), index)]
