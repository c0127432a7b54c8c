"""A step's result, from the moment it is launched until the ledger has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import CommittedTokens
from specgrammar.protocols.staging import Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.ledger import RequestResult, StepResult
from specgrammar.runtime.sources import sources_of
from specgrammar.trees.tree import DraftTree, HostTree


@dataclass(frozen=True, eq=False)
class PublishedStep:
    """A step whose acceptance was launched (`Launched[StepResult]`).

    Attributes:
        step: its number.
        request_ids: in row order.
        tree: what was drafted for them.
        status: int8 `[num_nodes]` of `NodeStatus`.
        paths: the accepted paths, perhaps not yet found.
        is_known: whether they are found for certain, whatever the clock says.
        max_tokens: the most that it can commit for a request: the longest path, and a bonus token.
        has_grammar: whether a grammar restricts one of its requests.
        drafted: the tree as it was proposed and pruned, which says who drafted what; None where nobody asks.
    """

    step: int
    request_ids: tuple[str, ...]
    tree: HostTree
    status: NDArray[np.int8]
    paths: Launched[AcceptedPaths]
    is_known: bool
    max_tokens: int
    has_grammar: bool
    drafted: DraftTree | None = None

    def done(self) -> bool:
        """Whether the paths are found."""
        return self.paths.done()

    def wait(self) -> StepResult:
        """The result; waits for the paths, raises what finding them raised."""
        self.paths.wait()
        return self.value()

    def value(self) -> StepResult:
        """Each request's accepted draft tokens in path order, then its bonus token."""
        paths = self.paths.value()
        tokens, num_tokens = committed_tokens(self.tree, paths)
        is_real = self.status != NodeStatus.PADDING
        num_real = np.add.reduceat(is_real, self.tree.cu_nodes[:-1]) if self.request_ids else ()
        results = []
        for b, (request_id, row, count) in enumerate(
            zip(self.request_ids, tokens.tolist(), num_tokens.tolist(), strict=True)
        ):
            logprobs = None if paths.logprobs is None else tuple(paths.logprobs[b, :count].tolist())
            results.append(
                RequestResult(
                    request_id,
                    tuple(row[:count]),
                    max(0, int(num_real[b]) - 1),
                    bool(paths.bonus_token[b] >= 0),
                    logprobs,
                    self._drafters(paths, b),
                )
            )
        return StepResult(self.step, tuple(results))

    def _drafters(self, paths: AcceptedPaths, request: int) -> tuple[str, ...]:
        """Who drafted each accepted token of a request; empty where the tree does not say."""
        source = None if self.drafted is None else sources_of(self.drafted)
        if self.drafted is None or source is None:
            return ()
        nodes = paths.accept_index[request, 1 : 1 + int(paths.accept_length[request])]
        of_nodes = source[int(self.tree.cu_nodes[request]) + nodes]
        return tuple(self.drafted.sources[number] for number in of_nodes.tolist())

    def behind(self, request_ids: Sequence[str | None], device: torch.device) -> StepInFlight:
        """This step as the unresolved one of a batch of these requests; None for one that is not in it."""
        row_of = {request_id: row for row, request_id in enumerate(self.request_ids)}
        rows = tuple(-1 if name is None else row_of[name] for name in request_ids)
        return StepInFlight(self, rows, device)


@dataclass(frozen=True, eq=False)
class StepInFlight:
    """A published step, seen from the batch behind it (`protocols.spec.Unresolved`).

    Attributes:
        published: the step.
        rows: for each request of the batch its row in that step, -1 for one that was not in it.
        device: where committed tokens go.
    """

    published: PublishedStep
    rows: tuple[int, ...]
    device: torch.device

    @property
    def max_tokens(self) -> int:
        """See `protocols.spec.Unresolved`."""
        return self.published.max_tokens

    @property
    def takes_part(self) -> tuple[bool, ...]:
        """See `protocols.spec.Unresolved`."""
        return tuple(row >= 0 for row in self.rows)

    def value(self) -> CommittedTokens:
        """See `protocols.spec.Unresolved`."""
        return self._committed

    @cached_property  # several pieces of a step's work read it
    def _committed(self) -> CommittedTokens:
        paths = self.published.paths.value()
        rows = np.array(self.rows, dtype=np.int64)
        tokens, num_tokens = committed_tokens(self.published.tree, paths)
        all_tokens = np.full((len(rows), self.max_tokens), -1, dtype=np.int64)
        all_tokens[:, : tokens.shape[1]] = np.where(rows[:, None] >= 0, tokens[rows], -1)
        counts = np.where(rows >= 0, num_tokens[rows], 0)
        return CommittedTokens(
            torch.from_numpy(all_tokens).to(self.device), torch.from_numpy(counts).to(self.device)
        )


def committed_tokens(tree: HostTree, paths: AcceptedPaths) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Accepted draft tokens, then the bonus token, -1 behind, int64 `[bs, width]`; and how many, `[bs]`."""
    depth = np.arange(1, paths.accept_index.shape[1] + 1)
    nodes = np.pad(paths.accept_index[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    length = paths.accept_length[:, None]
    drafts = tree.draft_tokens[tree.cu_nodes[:-1, None] + np.where(depth <= length, nodes, 0)]
    bonus = np.where(depth == length + 1, paths.bonus_token[:, None], -1)
    return np.where(depth <= length, drafts, bonus), paths.accept_length + (paths.bonus_token >= 0)
