"""Where a step's host time goes, and what became of its drafts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.grammar import NodeStatus


@dataclass
class Trace:
    """Sums over the steps of a run.

    Attributes:
        seconds: host seconds by stage name.
        num_steps: target forwards.
        num_draft_tokens: draft tokens verified, roots and padding not counted.
        num_accepted: of these, those on an accepted path.
        num_rejected_by_grammar: of these, those that are illegal or below an illegal one.
        num_mask_rows: bitmask rows filled and uploaded.
        num_stale_drafts: drafts dropped because they were made for another step.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    num_rejected_by_grammar: int = 0
    num_mask_rows: int = 0
    num_stale_drafts: int = 0

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Add the time inside to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - begin

    @property
    def num_rejected_by_target(self) -> int:
        """Legal drafts that the target did not take."""
        return self.num_draft_tokens - self.num_accepted - self.num_rejected_by_grammar

    def count(
        self, status: NDArray[np.int8], cu_nodes: NDArray[np.int64], num_rows: int, num_accepted: int
    ) -> None:
        """Count one step's nodes: statuses, and where each request's begin and end."""
        is_draft = np.ones(len(status), np.bool_)
        is_draft[cu_nodes[:-1]] = False
        drafts = status[is_draft]
        self.num_steps += 1
        self.num_draft_tokens += int(np.count_nonzero(drafts != NodeStatus.PADDING))
        self.num_rejected_by_grammar += int(np.count_nonzero(drafts == NodeStatus.REJECTED))
        self.num_accepted += num_accepted
        self.num_mask_rows += num_rows
