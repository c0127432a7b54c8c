"""What lazy masking is to survive: a model of odd logits, trees of odd tokens, parts that raise.

Everything is a hash of seed and history, so that an example is the same whenever it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import (
    BackendFacts,
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarSpec,
    Vocabulary,
)
from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    Topology,
)
from specgrammar.protocols.staging import Device, Launched
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.registry import BACKENDS, create
from specgrammar.testing.toy_target import ToyTarget
from specgrammar.testing.toys import GRAMMARS, TEXTS, path_to
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree
from tests.toys import BACKEND_NAMES

VOCABULARY = Vocabulary((*TEXTS, b"", b"", b""), stop_ids=(16, 18), special_ids=frozenset({16, 17, 18}))
SIZE = VOCABULARY.vocab_size
BACKEND = {name: create(BACKENDS, name, VOCABULARY) for name in BACKEND_NAMES}
SPECS = (*GRAMMARS, GrammarSpec.regex("([abc12]|: |, )*"), GrammarSpec.regex("a(b|c)z"), None)
"""The last but one has dead ends: no token spells the z."""


@dataclass(frozen=True)
class World:
    """What the model of an example is like."""

    seed: int
    columns: int
    dtype: torch.dtype
    coarse: float
    bad: float
    device_made: bool

    def rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Ties where coarse, zeros of both signs, sometimes NaN, infinities or nothing; +inf as padding."""
        rng = self.rng(*tokens[-3:])
        row = rng.normal(0, 3, self.columns)
        if self.coarse:
            row = np.round(row / self.coarse) * self.coarse
        row[rng.random(self.columns) < 0.1] = -0.0
        if rng.random() < self.bad:
            at = int(rng.integers(self.columns))
            spoil: list[tuple[Any, float]] = [
                (at, np.nan),
                (at, np.inf),
                (slice(None), -np.inf),
                (slice(None), 0.0),
                (slice(None), np.nan),
                (rng.random(self.columns) < 0.7, -np.inf),
            ]
            where, value = spoil[int(rng.integers(len(spoil)))]
            row[where] = value
        row[SIZE:] = np.inf
        return torch.from_numpy(row).to(self.dtype)

    def tree(self, batch: DecodeBatch) -> HostTree:
        cu_nodes, tokens, parents = [0], list[int](), list[int]()
        for view in batch.requests:
            rng = self.rng(view.num_tokens, *view.tokens[-3:], int(view.request_id))
            tokens.append(view.tokens[-1])
            parents.append(-1)
            paths: dict[int, list[int]] = {0: []}
            for node in range(1, int(rng.integers(1, 9))):
                parent = list(paths)[-1 - int(rng.integers(min(3, len(paths))))]
                if len(paths[parent]) >= view.max_draft_tokens or rng.random() < 0.1:
                    tokens.append(-1)
                    parents.append(-1)
                    continue
                row = self.logits([*view.tokens, *paths[parent]])[:SIZE].double().nan_to_num(0, 0, 0)
                likely = row.argsort(descending=True, stable=True).tolist()
                stray = int(rng.integers(SIZE + 6 * self.device_made))
                token = likely[min(int(rng.geometric(0.4)), SIZE, len(likely)) - 1]
                tokens.append([token, token, token, stray, int(rng.choice([16, 18]))][int(rng.integers(5))])
                parents.append(parent)
                paths[node] = [*paths[parent], tokens[-1]]
            cu_nodes.append(len(tokens))
        return HostTree.from_parents(*(np.array(column, np.int64) for column in (cu_nodes, tokens, parents)))


class LostStepError(Exception):
    """What a target raises once."""


@dataclass
class HostileTarget(ToyTarget):
    """A target of a world on a device; loses the steps of some numbers, in `wait` or in `commit`."""

    world: World = field(kw_only=True)
    device: Device = field(kw_only=True)
    lost: set[int] = field(default_factory=set)
    loses_in: str = "commit"

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Any:
        self.num_forwards += 1
        host = self.world.tree(batch) if tree.host is None else tree.host
        self._tree = DraftTree.from_host(tree.step, host)
        behind: list[list[int]] = []
        for b, request in enumerate(batch.requests):
            assert [*self.cache[request.request_id], request.tokens[-1]] == list(request.tokens)
            first, end = host.cu_nodes[b : b + 2].tolist()
            real = host.draft_tokens[first:end].tolist()
            paths = [path_to(host, first, node) if token >= 0 else [] for node, token in enumerate(real)]
            behind += [[*request.tokens[-3:], *path] for path in paths]
        loses = self.loses_in == "wait" and self.num_forwards in self.lost

        def forward() -> torch.Tensor:
            if loses:
                raise LostStepError
            return torch.stack([self.world.logits(tokens) for tokens in behind])

        launched: Launched[torch.Tensor] = self.device.launch(forward, "forward")
        return launched

    def commit(self, batch: DecodeBatch, paths: Launched[AcceptedPaths]) -> None:
        if self.loses_in == "commit" and self.num_forwards in self.lost:
            raise LostStepError
        super().commit(batch, paths)


@dataclass(frozen=True)
class Trees:
    """The algorithm whose trees are the world's."""

    world: World
    api_version: Literal[1] = 1
    proposal: Proposal = Proposal.POINT
    needs: Needs = "history"

    @property
    def topology(self) -> Topology:
        return Topology("tree", max_nodes=9, max_depth=8)

    def supports_grammar_overlap(self) -> bool:
        return False

    def make_producer(self, context: ProducerContext) -> Trees:  # noqa: ARG002  # the protocol's
        return self

    def propose(self, batch: DecodeBatch) -> DraftTree:
        host = self.world.tree(batch)
        if not self.world.device_made:
            return DraftTree.from_host(batch.step, host)
        names = ("draft_tokens", "retrieve_next_token", "retrieve_next_sibling")
        made = DeviceTree(*(torch.from_numpy(getattr(host, name).copy()) for name in names))
        return DraftTree(batch.step, host.cu_nodes, device=made)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""


@dataclass
class BreakingMatcher:
    """Raises at the n-th call of a kind; has no abilities."""

    inner: GrammarMatcher
    breaks: dict[str, int]
    calls: Counter[str] = field(default_factory=Counter)

    def _call(self, kind: str) -> None:
        self.calls[kind] += 1
        if self.breaks.get(kind) == self.calls[kind]:
            raise RuntimeError(f"{kind} number {self.calls[kind]}")

    @property
    def finished(self) -> bool:
        return self.inner.finished

    def accept(self, token: int) -> bool:
        self._call("accept")
        return self.inner.accept(token)

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        return next((i for i, token in enumerate(tokens) if not self.accept(token)), len(tokens))

    def rollback(self, num_tokens: int) -> None:
        self._call("rollback")
        self.inner.rollback(num_tokens)

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        self._call("fill")
        self.inner.fill_bitmask(bitmask, row)

    def fork(self) -> BreakingMatcher:
        raise AssertionError("a step forks no matcher")


@dataclass
class BreakingBackend:
    """Makes matchers that break, one after the other as it is told."""

    inner: GrammarBackend
    breaks: Sequence[dict[str, int]]
    num_made: int = 0
    api_version: Literal[1] = field(default=1, init=False)

    @property
    def facts(self) -> BackendFacts:
        return self.inner.facts

    @property
    def vocabulary(self) -> Vocabulary:
        return self.inner.vocabulary

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        return self.inner.compile(spec)

    def matcher(self, compiled: Any) -> BreakingMatcher:
        self.num_made += 1
        return BreakingMatcher(
            self.inner.matcher(compiled), self.breaks[(self.num_made - 1) % len(self.breaks)]
        )
