"""The library's side of the catalogue: matchers of every backend, rows, one step by hand, an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specgrammar.config import Config
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Resolved
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher, GrammarSpec, NodeStatus
from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    SpecAlgorithm,
    Topology,
)
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.results import committed_tokens
from specgrammar.runtime.waiting import AgreeJoins
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from specgrammar.testing.toy_target import NUM_COLUMNS, ToyAdapter, ToyTarget, join_in_order, toy_logits
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree
from tests.toys import BACKEND_NAMES, legal_ids
from tests.toys import backend as installed

A, B, C, AB, ABC, ONE, TWO = 0, 1, 2, 3, 4, 12, 13
PAIRS = GrammarSpec.regex("(ab)+")
LIVE, FREE, ENDED, REJECTED, PADDING = (
    NodeStatus.LIVE,
    NodeStatus.FREE,
    NodeStatus.ENDED,
    NodeStatus.REJECTED,
    NodeStatus.PADDING,
)
NAMES = ("reference", *BACKEND_NAMES)
DEVICE = InlineDevice()
REFERENCE = ReferenceBackend(VOCABULARY)
MatcherKind = TypeVar("MatcherKind", bound=ReferenceMatcher)

every_backend = pytest.mark.parametrize("name", NAMES)
"""The reference and the backends that are installed with the library."""


def backend(name: str) -> GrammarBackend:
    """A backend over the kit's vocabulary."""
    return REFERENCE if name == "reference" else installed(name)


def matcher(spec: GrammarSpec, name: str = "reference") -> GrammarMatcher:
    """A fresh matcher."""
    made = backend(name)
    return made.matcher(made.compile(spec))


def matcher_of(kind: type[MatcherKind], spec: GrammarSpec) -> MatcherKind:
    """A matcher of a subclass of the reference's."""
    return kind(REFERENCE.compile(spec).parser, VOCABULARY)


def replayed(spec: GrammarSpec, tokens: Sequence[int], name: str = "reference") -> GrammarMatcher:
    """A fresh matcher behind some legal tokens."""
    fresh = matcher(spec, name)
    assert fresh.accept_prefix(tokens) == len(tokens)
    return fresh


def legal_behind(spec: GrammarSpec, tokens: Sequence[int], name: str = "reference") -> list[int]:
    """What may follow some legal tokens."""
    return legal_ids(replayed(spec, tokens, name))


def state_of(session: GrammarSession) -> GrammarMatcher:
    """The matcher of a session."""
    assert session.cursor is not None
    return session.cursor.matcher


def session_of(spec: GrammarSpec | None, tokens: Sequence[int] = (), name: str = "reference") -> GrammarSession:
    """A session that has committed some tokens."""
    session = GrammarSession(VOCABULARY, None if spec is None else matcher(spec, name))
    session.commit(tokens)
    assert session.output == list(tokens)
    return session


def rows_for(num_nodes: int) -> NDArray[np.int32]:
    """An empty buffer of rows."""
    return np.zeros((num_nodes, VOCABULARY.num_words), np.int32)


def ids(row: NDArray[np.int32]) -> list[int]:
    """The ids that a row allows."""
    return [i for i in range(VOCABULARY.vocab_size) if int(row[i // 32]) >> (i % 32) & 1]


def tree_of(tokens: Sequence[int], parents: Sequence[int]) -> HostTree:
    """One request's tree."""
    return HostTree.from_parents(np.array([0, len(tokens)]), np.array(tokens), np.array(parents))


def mask_of(sessions: Sequence[GrammarSession], tree: HostTree) -> GrammarMask:
    """A step's mask, in memory of its own."""
    return build_grammar_mask(
        sessions, Resolved(tree), BitmaskRing(DEVICE, VOCABULARY.num_words), DEVICE, VOCABULARY
    )


def wanting(*tokens: int) -> torch.Tensor:
    """Logits of a model that wants one token behind each node."""
    logits = torch.zeros(len(tokens), NUM_COLUMNS)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 9.0
    return logits


def accepted(
    tree: HostTree,
    logits: torch.Tensor,
    status: NDArray[np.int8],
    sampling: SamplingParams = SamplingParams(),  # noqa: B008  # a frozen value
) -> AcceptedPaths:
    """The paths that the target takes, by the library's acceptance."""
    views = [RequestView(str(b), (0,), 1, 100, sampling) for b in range(tree.bs)]
    return accept(tree, logits, status, views)


def step(sessions: Sequence[GrammarSession], tree: HostTree, logits: torch.Tensor) -> list[list[int]]:
    """One greedy step: mask, accept, commit; what each request has kept of it."""
    mask = mask_of(sessions, tree)
    mask.upload()
    mask.apply(logits)
    tokens, counts = committed_tokens(tree, accepted(tree, logits, mask.status))
    for session, row, count in zip(sessions, tokens.tolist(), counts.tolist(), strict=True):
        session.commit(row[:count])
    return [session.output for session in sessions]


def plain_decoding(request: Request) -> list[int]:
    """Ordinary greedy decoding of the toy model, masked where there is a grammar, written out."""
    tokens, output = list(request.prompt_tokens), list[int]()
    state = None if request.grammar is None else matcher(request.grammar)
    while len(output) < request.max_new_tokens:
        logits = toy_logits(tokens)[: VOCABULARY.vocab_size].tolist()
        options = range(VOCABULARY.vocab_size) if state is None else legal_ids(state)
        token = max(options, key=logits.__getitem__)
        output.append(token)
        tokens.append(token)
        if state is not None:
            assert state.accept(token)
        if token == STOP:
            break
    return output


@dataclass(frozen=True)
class Scripted:
    """An algorithm whose trees a test makes; it is its own producer."""

    make: Callable[[DecodeBatch], DraftTree]
    needs: Needs = "history"
    api_version: Literal[1] = 1
    proposal: Proposal = Proposal.POINT

    @property
    def topology(self) -> Topology:
        """Trees of up to eight drafts."""
        return Topology("tree", max_nodes=9, max_depth=8)

    def make_producer(self, context: ProducerContext) -> Scripted:  # noqa: ARG002  # the protocol's
        """Itself."""
        return self

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """The test's."""
        return self.make(batch)

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learnt."""


def chains(batch: DecodeBatch, drafts: Sequence[Sequence[int]]) -> DraftTree:
    """A chain of drafts per request, no longer than it may be."""
    made = [
        [view.tokens[-1], *chain[: view.max_draft_tokens]]
        for view, chain in zip(batch.requests, drafts, strict=True)
    ]
    return DraftTree.from_host(batch.step, HostTree.from_chains(made))


def engine_of(
    algorithm: SpecAlgorithm | str,
    grammars: GrammarBackend = REFERENCE,
    agree_joins: AgreeJoins = join_in_order,
    **config: Any,
) -> tuple[Engine, ToyTarget]:
    """An engine over the toy model and the model; requests join in order, whatever is compiled when."""
    options = {"algorithm_options": {"min_match": 1}} if algorithm in ("ngram", "chain") else {}
    settings = Config(**{**options, **config})
    made: SpecAlgorithm = (
        create(ALGORITHMS, algorithm, **settings.algorithm_options) if isinstance(algorithm, str) else algorithm
    )
    adapter = ToyAdapter(ToyTarget())
    return Engine(adapter, grammars, made, settings, agree_joins=agree_joins), adapter.target


def decoded(engine: Engine, *requests: Request) -> dict[str, RequestOutput]:
    """The outputs of some requests."""
    return {output.request_id: output for output in engine.generate(requests)}


def gate_behind(*marker: int) -> Markers:
    """Opens a grammar behind a marker."""
    return Markers(after=(marker,))
