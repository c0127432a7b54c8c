"""`eagle` without a model: a random head beside a target whose features are a function of the tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    Topology,
    TreeProducer,
)
from specgrammar.protocols.target import SharedTensors
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.eagle.checkpoint import save_head
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.trees.tree import DraftTree
from tests.spec.drafting import VOCAB_SIZE

HIDDEN = 16
_SHARED = torch.randn(2, VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(1))


@dataclass
class FeatureTarget:
    """Has cached, at each draft, all but the last token of what the batch shows (`SupportsFeatures`)."""

    taken: dict[str, int] = field(default_factory=dict)
    histories: dict[str, list[int]] = field(default_factory=dict)

    @property
    def shared(self) -> SharedTensors:
        """Random."""
        return SharedTensors(_SHARED[0], _SHARED[1], 3)

    def watch(self, layers: Sequence[int]) -> None:
        """One layer."""
        assert list(layers) == [LAST]

    def look(self, batch: DecodeBatch) -> None:
        """Learn what is cached; a history that is not the old one's continuation is another request's."""
        for view in batch.requests:
            old, new = self.histories.get(view.request_id, []), list(view.tokens)
            if new[: len(old)] != old:
                self.taken.pop(view.request_id, None)
            self.histories[view.request_id] = new

    def take_features(self, request_id: str) -> torch.Tensor:
        """Of tokens that were not taken yet."""
        begin, history = self.taken.get(request_id, 0), self.histories[request_id]
        self.taken[request_id] = len(history) - 1
        return _SHARED[0][torch.tensor(history[begin:-1], dtype=torch.int64)]


@dataclass(frozen=True)
class ToyEagle:
    """`EagleAlgorithm` over a `FeatureTarget` of its own."""

    algorithm: EagleAlgorithm
    api_version: Literal[1] = 1

    @property
    def topology(self) -> Topology:
        """The algorithm's."""
        return self.algorithm.topology

    @property
    def proposal(self) -> Proposal:
        """The algorithm's."""
        return self.algorithm.proposal

    def supports_grammar_overlap(self) -> bool:
        """The algorithm's."""
        return self.algorithm.supports_grammar_overlap()

    def make_producer(self, context: ProducerContext) -> ToyEagleProducer:
        """The algorithm's, whose target looks first."""
        target = FeatureTarget()
        return ToyEagleProducer(self.algorithm.make_producer(replace(context, target=target)), target)


class ToyEagleProducer:
    """Tells the target what is cached before each draft."""

    def __init__(self, producer: TreeProducer, target: FeatureTarget) -> None:
        self.needs: Needs = producer.needs
        self._producer, self._target = producer, target

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """The producer's."""
        self._target.look(batch)
        return self._producer.propose(batch)

    def observe(self, commits: Sequence[Commit]) -> None:
        """The producer's; a request that is over takes its features with it."""
        self._producer.observe(commits)
        for commit in commits:
            if commit.finished:
                self._target.taken.pop(commit.request_id, None)
                self._target.histories.pop(commit.request_id, None)


@cache
def head_folder() -> str:
    """A random head of the EAGLE-1 layout, written once."""
    config = EagleConfig("eagle", HIDDEN, 2, 2, 8, 24, VOCAB_SIZE, HIDDEN, (LAST,))
    torch.manual_seed(2)
    folder = Path(tempfile.mkdtemp(prefix="specgrammar-head-"))
    save_head(folder, EagleHead(config, _SHARED[0], _SHARED[1]), torch.float32)
    return str(folder)


def toy_eagle(topk: int, num_steps: int, num_draft_tokens: int) -> ToyEagle:
    """The algorithm with a shape."""
    return ToyEagle(EagleAlgorithm(head_folder(), num_steps, topk, num_draft_tokens))
