"""`Watched`: an algorithm whose every proposal is looked at while an engine runs, without waiting for any.

What a device makes is copied by work on the stream, right behind what makes it, and judged once that has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from specgrammar.errors import ConformanceError
from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    RequestView,
    SpecAlgorithm,
    Topology,
    TreeProducer,
    supports_grammar_overlap,
)
from specgrammar.protocols.spec import Proposal as ProposalKind
from specgrammar.protocols.staging import Device, Launched
from specgrammar.spec.roots import last_tokens
from specgrammar.testing.checks.base import expect
from specgrammar.testing.proposals import JUDGES, Made
from specgrammar.trees.chain import chain_links
from specgrammar.trees.tree import DraftTree, HostTree


class _Seen(NamedTuple):
    """A proposal as the stream found it: the last committed tokens, and the nodes."""

    roots: list[int]
    host: HostTree


@dataclass
class Watched:
    """An algorithm, and what was seen of its proposals.

    Attributes:
        algorithm: the one that is watched.
        show: tokens for people.
        shapes: of each proposal, where each request's nodes end.
        num_in_flight: proposals behind a step that was not resolved.
        num_judged: proposals that were looked at.
    """

    algorithm: SpecAlgorithm
    show: Callable[[Sequence[int]], str]
    api_version: Literal[1] = 1
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    num_in_flight: int = 0
    num_judged: int = 0
    _pending: list[tuple[DecodeBatch, DraftTree, Launched[_Seen]]] = field(default_factory=list)
    _vocab_size: int = 0

    @property
    def topology(self) -> Topology:
        """The algorithm's."""
        return self.algorithm.topology

    @property
    def proposal(self) -> ProposalKind:
        """The algorithm's."""
        return self.algorithm.proposal

    def supports_grammar_overlap(self) -> bool:
        """The algorithm's."""
        return supports_grammar_overlap(self.algorithm)

    def make_producer(self, context: ProducerContext) -> TreeProducer:
        """The algorithm's, watched."""
        self._vocab_size = context.vocabulary.vocab_size
        return _WatchedProducer(self, self.algorithm.make_producer(context), context.device)

    def saw(self, batch: DecodeBatch, tree: DraftTree, device: Device) -> None:
        """Look at a proposal as soon as that is possible."""
        if not isinstance(tree, DraftTree):
            raise ConformanceError(f"propose returned a {type(tree).__name__}; expected a DraftTree")
        self.shapes.append(tuple(tree.cu_nodes.tolist()))
        if batch.unresolved is not None:
            self.num_in_flight += 1
            expect(
                tree.host is None,
                f"step {batch.step}: the tree is the host's, behind a step that is not resolved; a producer "
                "that needs 'nothing' makes its trees by launched work, behind `batch.unresolved.value()`",
            )
        shown = DecodeBatch(batch.step, tuple(map(_copied, batch.requests)))
        at_once = None if tree.made is not None or tree.host is not None else _nodes(tree)
        look = device.launch(lambda: _look(batch, shown, tree, at_once))
        self._pending.append((shown, tree, look))

    def judge(self, *, waits: bool = False) -> None:
        """Judge what has come to the host; with `waits` all of it."""
        while self._pending and (waits or self._pending[0][2].done()):
            batch, tree, look = self._pending.pop(0)
            try:
                seen = look.wait()
            except ConformanceError:
                raise
            except Exception:  # drafting or the step before has failed: the engine says so
                continue
            for judge in JUDGES:
                judge(self._made(batch, tree, seen))
            self.num_judged += 1

    def _made(self, batch: DecodeBatch, tree: DraftTree, seen: _Seen) -> Made:
        algorithm = self.algorithm
        return Made(
            batch.step,
            batch.requests,
            seen.roots,
            tree,
            seen.host,
            algorithm.topology,
            algorithm.proposal,
            self._vocab_size,
            self.show,
        )


class _WatchedProducer:
    """Calls a producer and looks at what it is given back."""

    def __init__(self, watched: Watched, producer: TreeProducer, device: Device) -> None:
        self.needs: Needs = producer.needs
        self._watched, self._producer, self._device = watched, producer, device

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """The producer's tree."""
        self._watched.judge()
        before = [list(view.tokens) for view in batch.requests]
        try:
            tree = self._producer.propose(batch)
        except Exception as error:
            if self.needs != "grammar" and "NoneType" in str(error):
                raise ConformanceError(
                    f"propose raised {type(error).__name__}: {error}; view.grammar is None for a producer "
                    f"whose needs is {self.needs!r}, one that reads it declares needs = 'grammar'"
                ) from error
            raise
        for view, tokens in zip(batch.requests, before, strict=True):
            is_same = list(view.tokens) == tokens
            expect(is_same, f"propose changed the tokens of request {view.request_id!r}: views are read only")
        self._watched.saw(batch, tree, self._device)
        return tree

    def observe(self, commits: Sequence[Commit]) -> None:
        """The producer's."""
        self._producer.observe(commits)


def _look(batch: DecodeBatch, shown: DecodeBatch, tree: DraftTree, at_once: list[torch.Tensor] | None) -> _Seen:
    """On the stream, behind the work that makes the tree and before anybody else touches it."""
    if tree.made is not None:
        tree.made.value()
    committed = None if batch.unresolved is None else batch.unresolved.value()
    roots = last_tokens(shown, committed, torch.device("cpu")).tolist()
    if tree.host is not None:
        return _Seen(roots, tree.host)
    tokens, *links = _nodes(tree)
    if at_once is not None:
        same = all(torch.equal(a, b) for a, b in zip(at_once, (tokens, *links), strict=True))
        expect(
            same,
            f"step {batch.step}: the tree was written after `propose` had returned it, but `made` is None; "
            "hand out the launched work that writes it",
        )
    if not links:
        return _Seen(
            roots, HostTree(tree.cu_nodes, tokens.numpy(), *chain_links(tree.cu_nodes, tokens.numpy() >= 0))
        )
    return _Seen(roots, HostTree(tree.cu_nodes, *(part.numpy() for part in (tokens, *links))))


def _nodes(tree: DraftTree) -> list[torch.Tensor]:
    parts = (tree.device.draft_tokens, tree.device.retrieve_next_token, tree.device.retrieve_next_sibling)
    return [torch.as_tensor(part).cpu().clone() for part in parts if part is not None]


def _copied(view: RequestView) -> RequestView:
    return RequestView(
        view.request_id,
        tuple(view.tokens[: view.num_tokens]),
        view.num_prompt_tokens,
        view.max_draft_tokens,
        view.sampling,
    )
