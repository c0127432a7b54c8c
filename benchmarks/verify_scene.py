"""A step as verification finds it: random trees, logits that often agree with them, and what is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.spec.accept import accept
from specgrammar.spec.accept_on_device import accept_on_device
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.verify_inputs import DeviceForest, DevicePaths, DeviceProposals, DeviceSampling
from specgrammar.trees.ragged import flat_links, node_starts
from specgrammar.trees.tree import HostTree, SampledProposals

METHODS = ("greedy", "sampled", "rejection")


class VerifyScene(NamedTuple):
    """What `verify` is called with, and what `accept` says of the same on the host.

    `step` is the step's call of `accept_on_device`, from the host's arrays.
    """

    forest: DeviceForest
    logits: torch.Tensor
    status: torch.Tensor
    sampling: DeviceSampling | None
    sampled: DeviceProposals | None
    expected: AcceptedPaths
    step: Callable[[], AcceptedPaths]

    def agrees(self, found: DevicePaths) -> bool:
        """Whether the paths are those of `accept`."""
        width = self.expected.accept_index.shape[1]
        index = found.accept_index.cpu().numpy()
        same = np.array_equal(index[:, :width], self.expected.accept_index) and (index[:, width:] == -1).all()
        same &= np.array_equal(found.accept_length.cpu().numpy(), self.expected.accept_length)
        return bool(same and np.array_equal(found.predict.cpu().numpy(), self.expected.bonus_token))

    def step_agrees(self) -> bool:
        """Whether the step's call gives the same arrays."""
        found, right = self.step(), self.expected
        pairs = zip(list(vars(found).values())[:3], list(vars(right).values())[:3], strict=True)
        return all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def verify_scene(device: torch.device, method: str, bs: int, num_nodes: int, vocab_size: int) -> VerifyScene:
    """Trees of `num_nodes` nodes, of which a tenth is dead; for rejection chains, drawn from q near p."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    is_chain = method == "rejection"
    parents = np.array(
        [[-1, *(i - 1 if is_chain else rng.integers(0, i) for i in range(1, num_nodes))] for _ in range(bs)]
    ).ravel()
    logits = torch.randn(bs * num_nodes, vocab_size, generator=generator)
    likely = torch.randint(vocab_size, (bs * num_nodes,), generator=generator)
    logits[torch.arange(len(likely)), likely] += float(np.log(vocab_size)) + 3
    q = (logits + 0.5 * torch.randn(logits.shape, generator=generator)).softmax(-1) if is_chain else logits[:0]

    tree = HostTree.from_parents(np.arange(bs + 1) * num_nodes, np.zeros_like(parents), parents)
    above = flat_links(parents, node_starts(tree.cu_nodes))
    guesses = q.multinomial(1, generator=generator)[:, 0] if is_chain else likely
    child = above >= 0
    tree.draft_tokens[child] = guesses.numpy()[above[child]]
    wrong = child & (rng.random(len(child)) < 0.3) & (not is_chain)
    tree.draft_tokens[wrong] = rng.integers(0, vocab_size, int(wrong.sum()))
    status = np.where(child & (rng.random(len(child)) < 0.1), NodeStatus.REJECTED, NodeStatus.LIVE).astype(
        np.int8
    )

    temperature = 0.0 if method == "greedy" else 1.0
    requests = [
        RequestView(str(i), range(1, 100 + i), 1, 100, SamplingParams(temperature, seed=i)) for i in range(bs)
    ]
    rows = np.where(child, above, -1)
    expected = accept(
        tree,
        logits,
        status,
        requests,
        method="rejection" if is_chain else "target_only",
        sampled=SampledProposals(rows, q) if is_chain else None,
    )

    def there(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    on_device = logits.to(device)
    drawn = SampledProposals(rows, q.to(device)) if is_chain else None
    num_tokens = there(np.array([request.num_tokens for request in requests]))
    params = [request.sampling for request in requests]
    return VerifyScene(
        DeviceForest(
            there(tree.draft_tokens),
            there(tree.retrieve_next_token),
            there(tree.retrieve_next_sibling),
            there(tree.cu_nodes),
            max_depth=int(tree.depths().max()),
        ),
        on_device,
        there(status),
        None if method == "greedy" else DeviceSampling.of(params, num_tokens),
        None if drawn is None else DeviceProposals(there(rows), drawn.q, max_children=1),
        expected,
        partial(accept_on_device, tree, on_device, status, requests, drawn),
    )
