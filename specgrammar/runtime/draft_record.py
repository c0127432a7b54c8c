"""`DraftRecorder`: the draft trees of a run, and what became of their nodes, for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specgrammar.protocols.target import AcceptedPaths
from specgrammar.trees.tree import DraftTree, HostTree

if TYPE_CHECKING:
    from specgrammar.runtime.results import PublishedStep


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One step's trees.

    Attributes:
        step: its number.
        request_ids: in row order.
        drafted: the verified trees, with their sources and what was cut before.
        host: their ids and links.
        status: int8 `[num_nodes]` of `NodeStatus`.
        paths: what the target took.
    """

    step: int
    request_ids: tuple[str, ...]
    drafted: DraftTree
    host: HostTree
    status: NDArray[np.int8]
    paths: AcceptedPaths


@dataclass
class DraftRecorder:
    """Keeps every step of a run in memory; set one as `engine.trace.recorder` before a short run."""

    _published: list[PublishedStep] = field(default_factory=list)

    def add(self, published: PublishedStep) -> None:
        """Keep a step; its paths may not be known yet."""
        self._published.append(published)

    def steps(self) -> Iterator[RecordedStep]:
        """The steps in order; waits for paths that are not known. Raises what a step raised."""
        for one in self._published:
            assert one.drafted is not None
            yield RecordedStep(one.step, one.request_ids, one.drafted, one.tree, one.status, one.paths.wait())
