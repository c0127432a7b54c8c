"""What verification on a device works on (trees, sampling parameters, stated distributions), and what it finds.

All tensors are on one device, and every shape is known to the host before anything runs: a launch may be
captured in a graph and replayed after new values were copied into the same tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import TreeError
from specgrammar.protocols.spec import CommittedTokens
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.sampling_table import SamplingTable


@dataclass(frozen=True, eq=False)
class DeviceForest:
    """The trees of a batch, one a request, as `trees.tree` lays them out; trusted to be well formed.

    Attributes:
        draft_tokens: int64 `[num_nodes]`, -1 for padding.
        retrieve_next_token: int64 `[num_nodes]`.
        retrieve_next_sibling: int64 `[num_nodes]`.
        cu_nodes: int64 `[bs + 1]`. It may end before `num_nodes`: what lies behind is not looked at. A request
            that only fills a batch may have no nodes.
        max_depth: no more draft tokens than this are accepted of a path. The token behind them is then the
            bonus token, so that a path that is cut here keeps its law.
    """

    draft_tokens: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    cu_nodes: torch.Tensor
    max_depth: int

    @property
    def bs(self) -> int:
        """Number of requests."""
        return len(self.cu_nodes) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes that there is room for."""
        return len(self.draft_tokens)


@dataclass(frozen=True, eq=False)
class DeviceSampling:
    """How and where each request samples; `of` makes it.

    The last three attributes are the host's, and are what a graph is captured for: all rows take part in what
    any row may need.

    Attributes:
        num_tokens: int64 `[bs]`, tokens up to the root, which is the position of the token behind it.
        seed: int64 `[bs]`.
        temperature: float64 `[bs]`, 0 for greedy; a greedy request has neutral values in what follows.
        top_k: int64 `[bs]`, at most `max_top_k`; 0 for all.
        top_p: float64 `[bs]`, 1 for all.
        log_min_p: float64 `[bs]`, -inf for all.
        max_top_k: 0 where nobody may use top-k.
        uses_top_p: whether somebody may use top-p; the rows are then sorted.
        uses_min_p: whether somebody may use min-p.
    """

    num_tokens: torch.Tensor
    seed: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    max_top_k: int
    uses_top_p: bool
    uses_min_p: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], num_tokens: torch.Tensor) -> DeviceSampling:
        """Copy parameters to where `num_tokens` (int64 `[bs]`) is; not for use under graph capture."""
        table, device = SamplingTable.of(params), num_tokens.device
        float32 = np.finfo(np.float32)
        temperature = np.where(table.greedy, 0, table.temperature.clip(float32.tiny, float32.max))
        top_k, top_p = np.where(table.greedy, 0, table.top_k), np.where(table.greedy, 1, table.top_p)
        with np.errstate(divide="ignore"):
            log_min_p = np.log(np.where(table.greedy, 0, table.min_p))

        def on_device(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        return cls(
            num_tokens=num_tokens,
            seed=on_device(table.seed),
            temperature=on_device(temperature),
            top_k=on_device(top_k),
            top_p=on_device(top_p),
            log_min_p=on_device(log_min_p),
            max_top_k=int(top_k.max(initial=0)),
            uses_top_p=bool((top_p < 1).any()),
            uses_min_p=bool((log_min_p > -np.inf).any()),
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The attributes that are the device's, in their order."""
        return self.num_tokens, self.seed, self.temperature, self.top_k, self.top_p, self.log_min_p

    def moved(self, tensors: Sequence[torch.Tensor]) -> DeviceSampling:
        """The same with its `tensors` elsewhere."""
        num_tokens, seed, temperature, top_k, top_p, log_min_p = tensors
        return replace(
            self,
            num_tokens=num_tokens,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            log_min_p=log_min_p,
        )

    @property
    def truncates(self) -> bool:
        """Whether a row may be truncated."""
        return self.max_top_k > 0 or self.uses_top_p or self.uses_min_p


@dataclass(frozen=True, eq=False)
class DeviceProposals:
    """The distributions that nodes were drawn from (`trees.tree.SampledProposals`), on the device.

    A node's children are all drawn or all chosen; the host checks that where it makes them.

    Attributes:
        row_of_node: int64 `[num_nodes]`, -1 for nodes that were chosen.
        q: float32 `[rows, columns]`, at most as many columns as the logits.
        max_children: of a node's drawn children the first so many are tried; 1 for chains.
    """

    row_of_node: torch.Tensor
    q: torch.Tensor
    max_children: int


class DevicePaths(NamedTuple):
    """`protocols.target.AcceptedPaths` on the device, in arrays of `width = max_depth + 1` columns; all int64.

    Attributes:
        accept_index: `[bs, width]`, node numbers local to the request from the root down, -1 behind the path
            and for a request without nodes.
        accept_length: `[bs]`, accepted draft tokens.
        predict: `[bs]`, the bonus token, -1 where there is none.
        kv_source: `[bs, width]`, where the cache entries to keep were written: node numbers in the flat arrays,
            which are slots of a window that the forward fills with its nodes in order. -1 behind the path.
        kv_destination: `[bs, width]`, where they belong: offsets behind the request's cached tokens, -1
            behind the path. `accept_length + 1` entries are kept, also where the root is dead.
    """

    accept_index: torch.Tensor
    accept_length: torch.Tensor
    predict: torch.Tensor
    kv_source: torch.Tensor
    kv_destination: torch.Tensor

    def committed(self, draft_tokens: torch.Tensor) -> CommittedTokens:
        """What the step commits, `[bs, width]` wide plus one; `draft_tokens` are the forest's."""
        width = self.accept_index.shape[1]
        # Behind the last accepted one, and where the root would be read again, there is no draft token.
        nodes = torch.nn.functional.pad(self.kv_source[:, 1:], (0, 1), value=-1)
        padded = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
        drafts = padded[torch.where(nodes < 0, len(draft_tokens), nodes)]
        place = torch.arange(width, device=nodes.device)
        is_bonus = place == self.accept_length[:, None]
        tokens = torch.where(is_bonus, self.predict[:, None], drafts)
        return CommittedTokens(tokens, self.accept_length + (self.predict >= 0))


def check_verify_inputs(
    forest: DeviceForest,
    logits: torch.Tensor,
    status: torch.Tensor,
    sampling: DeviceSampling | None,
    sampled: DeviceProposals | None,
) -> None:
    """Check shapes, dtypes, strides and devices as stated, without waiting for a device.

    Raises:
        TreeError: names the argument, what it is, and what was expected.
    """
    num_nodes, bs = forest.num_nodes, forest.bs
    if logits.dtype not in (torch.float16, torch.bfloat16, torch.float32) or logits.dim() != 2:
        raise TreeError(f"logits: {_about(logits)}; expected float16, bfloat16 or float32 [nodes, columns]")
    if len(logits) != num_nodes or logits.shape[1] == 0 or not _has_contiguous_rows(logits):
        raise TreeError(f"logits: {_about(logits)}; expected [{num_nodes}, at least 1] with contiguous rows")
    if forest.max_depth < 0:
        raise TreeError(f"max_depth is {forest.max_depth}; expected 0 or more draft tokens on a path")
    if bs < 1 and (bs < 0 or num_nodes):
        raise TreeError(
            f"cu_nodes has {bs + 1} entries for {num_nodes} nodes; it starts with 0, one more a request"
        )
    expected = [
        *((name, getattr(forest, name), torch.int64, num_nodes) for name in _NODE_ARRAYS),
        ("cu_nodes", forest.cu_nodes, torch.int64, bs + 1),
        ("status", status, torch.int8, num_nodes),
    ]
    if sampling is not None:
        expected += ((name, getattr(sampling, name), torch.int64, bs) for name in _INTEGERS)
        expected += ((name, getattr(sampling, name), torch.float64, bs) for name in _FLOATS)
    if sampled is not None:
        expected.append(("row_of_node", sampled.row_of_node, torch.int64, num_nodes))
        _check_proposals(sampled, sampling, logits)
    for name, tensor, dtype, length in expected:
        if tensor.dtype != dtype or tensor.shape != (length,) or not tensor.is_contiguous():
            raise TreeError(f"{name}: {_about(tensor)}; expected contiguous {dtype} [{length}]")
        if tensor.device != logits.device:
            raise TreeError(
                f"{name} is on {tensor.device}, but the logits are on {logits.device}; move it there"
            )


_NODE_ARRAYS = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")
_INTEGERS = ("num_tokens", "seed", "top_k")
_FLOATS = ("temperature", "top_p", "log_min_p")


def _check_proposals(sampled: DeviceProposals, sampling: DeviceSampling | None, logits: torch.Tensor) -> None:
    q = sampled.q
    if sampling is None:
        raise TreeError("sampled drafts without sampling parameters: a greedy batch needs no distributions")
    if sampled.max_children < 1:
        raise TreeError(f"max_children is {sampled.max_children}; expected 1 (chains) or more")
    fits = q.dim() == 2 and q.shape[1] <= logits.shape[1] and _has_contiguous_rows(q)
    if q.dtype != torch.float32 or not fits:
        raise TreeError(
            f"q: {_about(q)}; expected float32 [rows, at most {logits.shape[1]}] with contiguous rows"
        )
    if q.device != logits.device:
        raise TreeError(f"q is on {q.device}, but the logits are on {logits.device}; move it there")


def _has_contiguous_rows(matrix: torch.Tensor) -> bool:
    return matrix.stride(1) == 1 or matrix.numel() == 0


def _about(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
