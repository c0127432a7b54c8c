"""Acceptance: which path of each draft tree the target agrees with, and the token behind it.

The walk starts at the root. At each node the target's token for the next position is decided from that node's
row of masked logits; if an acceptable child carries the token, the walk goes on there, otherwise the token is
the bonus token and the path ends.

*Target-only*: the token is drawn without a look at the drafts, as ordinary decoding would draw it, with noise
keyed by (seed, absolute position, token). So the committed tokens are those of ordinary decoding, one by one,
whatever the tree; the tree only decides how many come from one forward. Greedy is the case without noise.

*Rejection*: the children of a node that were drawn from a stated q are tried one after the other (see
`rejection`), which accepts more and keeps the law, but not the tokens. Nodes without drawn children and greedy
requests are target-only.

On an accelerator the kernels of `verify` find the paths and the host waits for them once; they are the same.
`walk` states what they are: level by level, one row per request that is still walking, all requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, TreeError
from specgrammar.protocols.spec import Proposal, RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.sampling import AcceptMethod, check_accept_method
from specgrammar.spec.walk import Walk
from specgrammar.trees import jit
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals

ACCELERATORS: tuple[str, ...] = ("cuda",)
"""Where acceptance is the kernels' work; for torch, AMD's devices are `cuda` too."""


def check_acceptance(method: str, proposal: Proposal) -> None:
    """Refuse, when it is configured, a method that is not exact for an algorithm's proposals.

    Raises:
        ConfigError: an unknown method, or rejection sampling of nodes that were not drawn from a stated q.
    """
    check_accept_method("acceptance", method)
    if method == "rejection" and proposal is not Proposal.SAMPLED:
        raise ConfigError(
            "acceptance method 'rejection' needs drafts that were drawn from a stated distribution, but this "
            "algorithm's are chosen (Proposal.POINT); use 'target_only', which is exact for any draft"
        )


def accept(
    tree: HostTree,
    logits: torch.Tensor,
    status: NDArray[np.int8],
    requests: Sequence[RequestView],
    *,
    method: AcceptMethod = "target_only",
    sampled: SampledProposals | None = None,
    want_logprobs: bool = False,
) -> AcceptedPaths:
    """Walk every request's tree.

    Only LIVE, FREE and ENDED nodes are accepted, whatever the logits say; of equal siblings the one with the
    lowest index that may be. Nothing follows an ENDED node. A request whose root is dead or over gets
    length 0 and no bonus token. A row from which nothing may be drawn (all -inf, or holding NaN or +inf)
    ends its path without a bonus token.

    Args:
        tree: well-formed trees, one per request.
        logits: `[num_nodes, columns]`, any float dtype and device, -inf where the grammar or the padding of
            the columns forbids a token. Not changed.
        status: int8 `[num_nodes]`, the `NodeStatus` of each node.
        requests: one per tree; read are `request_id`, the length of `tokens` and `sampling`.
        method: `rejection` uses `sampled`; `target_only` does not look at it.
        sampled: the distributions that nodes were drawn from; None if all were chosen.
        want_logprobs: also return log-probabilities: log-softmax of the masked logits, at temperature 1 and
            untruncated, of each committed token.

    Returns:
        The paths; arrays are as wide as the longest path of the batch.

    Raises:
        ConfigError: unknown method, or siblings of which only some were drawn from a stated distribution.
        TreeError: arrays that do not fit each other.
    """
    check_accept_method("acceptance", method)
    if method == "target_only":
        sampled = None
    _check_shapes(tree, logits, status, requests, sampled)
    if sampled is not None:
        _check_siblings(tree, sampled, requests)
    if _kernels_read(logits) and not want_logprobs:
        # Here, so that a host without an accelerator does not load Triton.
        from specgrammar.spec.accept_on_device import accept_on_device

        return accept_on_device(tree, logits, status, requests, sampled)
    return Walk(tree, logits, status, requests, sampled).run().paths(want_logprobs)


def _kernels_read(logits: torch.Tensor) -> bool:
    """Whether they are where Triton runs, and as its kernels expect them."""
    return (
        jit.HAS_TRITON
        and logits.device.type in ACCELERATORS
        and logits.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and logits.stride(1) == 1
    )


def _check_shapes(
    tree: HostTree,
    logits: torch.Tensor,
    status: NDArray[np.int8],
    requests: Sequence[RequestView],
    sampled: SampledProposals | None,
) -> None:
    num_nodes, bs = int(tree.cu_nodes[-1]), len(tree.cu_nodes) - 1
    if logits.dim() != 2 or logits.shape[0] != num_nodes or status.shape != (num_nodes,) or len(requests) != bs:
        raise TreeError(
            f"accept: a batch of {bs} trees with {num_nodes} nodes came with logits {tuple(logits.shape)}, "
            f"status {status.shape} and {len(requests)} requests; expected a row and a status per node and a "
            "request per tree"
        )
    if sampled is None:
        return
    row, q = sampled.row_of_node, sampled.q
    if (
        row.shape != (num_nodes,)
        or q.dim() != 2
        or q.shape[1] > logits.shape[1]
        or row.max(initial=-1) >= len(q)
    ):
        raise TreeError(
            f"accept: {num_nodes} nodes with logits {tuple(logits.shape)} came with row_of_node {row.shape}, "
            f"up to {row.max(initial=-1)}, and q {tuple(q.shape)}; expected a row of q (or -1) per node, and "
            "no more columns than the logits have"
        )


def _check_siblings(tree: HostTree, sampled: SampledProposals, requests: Sequence[RequestView]) -> None:
    starts = node_starts(tree.cu_nodes)
    sibling = flat_links(tree.retrieve_next_sibling, starts)
    drawn = sampled.row_of_node >= 0
    for node in np.flatnonzero((sibling >= 0) & (drawn != drawn[sibling])):
        request = requests[int(np.searchsorted(tree.cu_nodes, node, side="right")) - 1]
        if not request.sampling.greedy:
            raise ConfigError(
                f"request {request.request_id!r}: of the siblings {node - starts[node]} and "
                f"{sibling[node] - starts[node]} one was drawn from a stated distribution and the other not, "
                "and no way of acceptance is exact for both; use method 'target_only', or let a node's "
                "children be all drawn or all chosen"
            )
