"""Acceptance by the kernels of `verify`: a step goes to the device in one copy, its paths come back in one.

The host's arrays of a step (tree, statuses, parameters) are a few kilobytes. They are packed into one piece of
pinned memory, which torch keeps for the steps to come and does not hand out again before the copy is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.verify import verify_triton
from specgrammar.spec.verify_inputs import DeviceForest, DeviceProposals, DeviceSampling
from specgrammar.spec.walk import to_host
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals

_ALIGNMENT = 16
"""Bytes: Triton compiles a kernel anew where a pointer that was aligned so is not."""


def accept_on_device(
    tree: HostTree,
    logits: torch.Tensor,
    status: NDArray[np.int8],
    requests: Sequence[RequestView],
    sampled: SampledProposals | None,
) -> AcceptedPaths:
    """`accept.accept`, whose arguments these are, checked; `sampled` asks for rejection sampling.

    Waits for the device once.

    Raises:
        TreeError: logits or q are of a dtype or layout that the kernels do not read.
        ConfigError: triton is not installed.
    """
    links = (tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling, tree.cu_nodes)
    host: list[NDArray[np.generic]] = [*links, status]
    sampling, max_children = None, 0
    if not all(request.sampling.greedy for request in requests):
        num_tokens = np.array([request.num_tokens for request in requests], dtype=np.int64)
        sampling = DeviceSampling.of([request.sampling for request in requests], torch.from_numpy(num_tokens))
        host += [tensor.numpy() for tensor in sampling.tensors()]
        if sampled is not None and (max_children := _most_drawn_children(tree, sampled)):
            host.append(sampled.row_of_node)

    tokens, first_child, sibling, cu_nodes, statuses, *others = upload(host, logits.device)
    forest = DeviceForest(tokens, first_child, sibling, cu_nodes, int(tree.depths().max(initial=0)))
    proposals = None
    if sampled is not None and max_children:
        proposals = DeviceProposals(others.pop(), sampled.q, max_children)
    if sampling is not None:
        sampling = sampling.moved(others)

    found = verify_triton(forest, logits, statuses, sampling, proposals)
    columns = (found.accept_index, found.accept_length[:, None], found.predict[:, None])
    paths: NDArray[np.int64] = to_host(torch.cat(columns, dim=1))
    length, bonus = paths[:, -2].copy(), paths[:, -1].copy()
    return AcceptedPaths(paths[:, : 1 + int(length.max(initial=0))].copy(), length, bonus)


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[torch.Tensor]:
    """The arrays in memory of the device, which one copy brings there; the host does not wait for it."""
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type != "cpu")
    for place, array in zip(torch.split(host, sizes), arrays, strict=True):
        place[: array.nbytes].numpy()[:] = np.ascontiguousarray(array).view(np.uint8)
    there = torch.split(host.to(device, non_blocking=True), sizes)
    return [
        place[: array.nbytes].view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        for place, array in zip(there, arrays, strict=True)
    ]


def _most_drawn_children(tree: HostTree, sampled: SampledProposals) -> int:
    """How many children that were drawn a node has at most."""
    parents = flat_links(tree.parents(), node_starts(tree.cu_nodes))
    return int(np.bincount(parents[(parents >= 0) & (sampled.row_of_node >= 0)], minlength=1).max())
