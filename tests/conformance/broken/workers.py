"""Algorithms that go wrong inside an engine: on its stream, among its requests, or in law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from specgrammar.errors import SpecGrammarError
from specgrammar.protocols.drafter import CausalDrafter, Drafts
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Needs,
    ProducerContext,
    Proposal,
    RequestView,
    Topology,
)
from specgrammar.spec.chain import ModelProducer
from specgrammar.spec.sampler import truncate_probs
from specgrammar.testing.checks.worker import WORKER_CHECKS
from specgrammar.testing.late_target import logits_behind
from specgrammar.testing.toys import STOP
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree, SampledProposals
from tests.conformance.broken.producers import Algorithm, Copier, Model
from tests.conformance.cases import Broken

# -- on the stream -------------------------------------------------------------------------------------------


class ReadsHistories(Copier):
    """Says that it needs nothing, and drafts behind what the host knows."""

    needs: Needs = "nothing"


class BehindTheKnown(ModelProducer):
    """Its trees are a device's, and begin where the host's histories end."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        return super().propose(replace(batch, unresolved=None))


class InOrderOfJoining(ModelProducer):
    """Takes the rows of the step in flight as they come."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        tree = super().propose(batch)
        tokens = tree.device.draft_tokens
        if batch.unresolved is not None and isinstance(tokens, torch.Tensor) and len(batch) > 1:
            roots = torch.from_numpy(tree.cu_nodes[:-1])

            def turn() -> None:
                tokens[roots] = tokens[roots].roll(1)

            return replace(tree, made=self._device.launch(turn, "draft"))
        return tree


class WithoutMade(ModelProducer):
    def propose(self, batch: DecodeBatch) -> DraftTree:
        return replace(super().propose(batch), made=None)


class ReadsTooEarly(ModelProducer):
    """Makes the host's tree of what the draft model will have written."""

    needs: Needs = "history"

    def propose(self, batch: DecodeBatch) -> DraftTree:
        tree = super().propose(batch)
        if not isinstance(tree.device.draft_tokens, torch.Tensor):
            return tree
        tokens = tree.device.draft_tokens.tolist()
        chains = [tokens[a:b] for a, b in zip(tree.cu_nodes, tree.cu_nodes[1:], strict=False)]
        return DraftTree.from_host(batch.step, HostTree.from_chains(chains))


class LooksAtTheClock(ModelProducer):
    """Drafts less where the step in flight is not done yet."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        try:
            if batch.unresolved is not None:
                batch.unresolved.value()
        except SpecGrammarError:
            short = tuple(
                replace(view, max_draft_tokens=min(1, view.max_draft_tokens)) for view in batch.requests
            )
            batch = replace(batch, requests=short)
        return super().propose(batch)


class ClaimsTooMuch(Copier):
    """Says that it overlaps, and reads the grammar."""

    needs: Needs = "grammar"


# -- among requests ------------------------------------------------------------------------------------------


class ReadsTheGrammar(Copier):
    """Prunes by the grammar, which is not shown to a producer that does not say so."""

    def drafts(self, view: RequestView) -> list[tuple[int, int]]:
        grammar: Any = view.grammar
        rows = np.zeros((1, 1), np.int32)
        grammar.fill(HostTree.roots([view.tokens[-1]]), rows)
        return super().drafts(view)


class BeginsWithAPrompt(Copier):
    """A request is known from its first step on, and what was taken out does not come back."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.known: set[str] = set()

    def drafts(self, view: RequestView) -> list[tuple[int, int]]:
        if view.num_tokens == view.num_prompt_tokens:
            self.known.add(view.request_id)
        if view.request_id not in self.known:
            raise KeyError(view.request_id)
        return super().drafts(view)

    def observe(self, commits: Sequence[Commit]) -> None:
        self.known -= {commit.request_id for commit in commits if commit.finished}


class EachStepCommits(Copier):
    """Counts on a commit behind each proposal."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.proposed: dict[str, int] = {}

    def drafts(self, view: RequestView) -> list[tuple[int, int]]:
        if self.proposed.get(view.request_id) == view.num_tokens:
            raise RuntimeError(f"{view.request_id}: a step without a commit")
        self.proposed[view.request_id] = view.num_tokens
        return super().drafts(view)

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.finished:
                self.proposed.pop(commit.request_id, None)


class NotedByRow(Copier):
    """Keeps the last token by the row of the batch, which is another's when somebody leaves."""

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self.rows: list[tuple[int, int]] = []

    def propose(self, batch: DecodeBatch) -> DraftTree:
        for row, view in enumerate(batch.requests):
            if row == len(self.rows):
                self.rows.append((0, 0))
            num_seen, _ = self.rows[row]
            if view.num_tokens > num_seen:
                self.rows[row] = (view.num_tokens, view.tokens[-1])
        chains = [(last,) for _, last in self.rows[: len(batch)]]
        return DraftTree.from_host(batch.step, HostTree.from_chains(chains))


class FailsAtDeadEnds(Copier):
    """Counts on a grammar that leads somewhere."""

    needs: Needs = "grammar"

    def drafts(self, view: RequestView) -> list[tuple[int, int]]:
        if view.grammar is not None:
            (status,) = view.grammar.fill(HostTree.roots([view.tokens[-1]]), np.zeros((1, 1), np.int32))
            if status not in (NodeStatus.LIVE, NodeStatus.FREE):
                raise ValueError(f"{view.request_id}: nothing to draft from")
        return super().drafts(view)


# -- in law --------------------------------------------------------------------------------------------------


class ChangedDrafts(ModelProducer):
    """A drafter's answer is changed before it is used."""

    def __init__(self, options: Any, drafter: CausalDrafter, context_device: Any) -> None:
        super().__init__(options, _Changed(drafter, context_device, self.change), context_device)

    def change(self, batch: DecodeBatch, drafts: Drafts, q: torch.Tensor) -> None:
        raise NotImplementedError


class _Changed:
    def __init__(self, drafter: CausalDrafter, device: Any, change: Callable[..., None]) -> None:
        self._drafter, self._device, self._change = drafter, device, change
        self.vocab_size = drafter.vocab_size

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        drafts = self._drafter.draft(batch, num_tokens, sampled=sampled)
        q = drafts.q
        if q is None:
            return drafts
        made = self._device.launch(lambda: self._change(batch, drafts, q), "draft")
        return replace(drafts, made=made)

    def forget(self, request_id: str) -> None:
        self._drafter.forget(request_id)


class PrunesDraws(ChangedDrafts):
    """Draws that the grammar will not like are cut away."""

    def change(self, batch: DecodeBatch, drafts: Drafts, q: torch.Tensor) -> None:  # noqa: ARG002  # the base's
        drafts.tokens[:, 1:][drafts.tokens[:, 1:] >= 6] = -1


class TakesTheBest(ChangedDrafts):
    """The likeliest token, with the distribution that it was not drawn from."""

    def change(self, batch: DecodeBatch, drafts: Drafts, q: torch.Tensor) -> None:  # noqa: ARG002  # the base's
        drafts.tokens[:, 1:] = q.argmax(dim=-1)


class ForgetsTheTemperature(ChangedDrafts):
    """States q at temperature 1, whatever it was drawn at."""

    def change(self, batch: DecodeBatch, drafts: Drafts, q: torch.Tensor) -> None:  # noqa: ARG002  # the base's
        params = [replace(view.sampling, temperature=1.0) for view in batch.requests]
        for column in range(q.shape[1]):
            logits = q[:, column].clamp(min=1e-30).log() * torch.tensor(
                [view.sampling.temperature for view in batch.requests]
            ).unsqueeze(1)
            q[:, column] = truncate_probs(logits, params)


class MasksAfterTheDraw(ChangedDrafts):
    """States q without what is no text, and had drawn with it."""

    def change(self, batch: DecodeBatch, drafts: Drafts, q: torch.Tensor) -> None:  # noqa: ARG002  # the base's
        tokens = drafts.tokens[:, 1:, None]
        mass = q.gather(2, tokens)
        q[:, :, 6:] *= 0.2
        q.scatter_(2, tokens, mass)
        q /= q.sum(dim=-1, keepdim=True)


class StatesTheNextRow(ModelProducer):
    """Rows of q are counted from the root: each node names the row behind it, and the last its own."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        tree = super().propose(batch)
        if tree.sampled is None:
            return tree
        rows = tree.sampled.row_of_node
        is_last = np.append(rows[1:] < 0, True)
        return replace(
            tree, sampled=replace(tree.sampled, row_of_node=np.where(is_last | (rows < 0), rows, rows + 1))
        )


class TopOfItsHead(Copier):
    """The two likeliest children, each with the law of the head: chosen, and said to be drawn."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        cu_nodes, tokens, rows, q = [0], list[int](), list[int](), list[torch.Tensor]()
        for view in batch.requests:
            logits = logits_behind(view.tokens[-1:])[: STOP + 1]
            q.append(truncate_probs(logits[None], [view.sampling])[0])
            best = logits.topk(2).indices.tolist() if view.max_draft_tokens and not view.sampling.greedy else []
            tokens += [view.tokens[-1], *best]
            rows += [-1, *[len(q) - 1] * len(best)]
            cu_nodes.append(len(tokens))
        parents = [-1 if i in cu_nodes else 0 for i in range(len(tokens))]
        host = HostTree.from_parents(*(np.array(part, np.int64) for part in (cu_nodes, tokens, parents)))
        sampled = SampledProposals(np.array(rows, np.int64), torch.stack(q))
        return DraftTree.from_host(batch.step, host, sampled=sampled)


class RefusesSampled(Copier):
    """Cannot draft for sampled requests, and says so in the decode loop."""

    def drafts(self, view: RequestView) -> list[tuple[int, int]]:
        if not view.sampling.greedy:
            raise ValueError("only greedy requests can be drafted for")
        return super().drafts(view)


class CutsOnTheDevice(Copier):
    """Nodes that are not trusted are cut, and the links to them stay."""

    def propose(self, batch: DecodeBatch) -> DraftTree:
        host = self.host(batch)
        tokens, first, sibling = (
            torch.from_numpy(part.copy())
            for part in (host.draft_tokens, host.retrieve_next_token, host.retrieve_next_sibling)
        )
        tokens[3::4] = -1
        return DraftTree(batch.step, host.cu_nodes, device=DeviceTree(tokens, first, sibling))


def of(producer: type[Any], **options: Any) -> Callable[[], Algorithm]:
    return partial(Algorithm, producer, **options)


def drawn(producer: type[Any]) -> Callable[[], Model]:
    return partial(Model, num_draft_tokens=3, draft_sampling="sampled", producer=producer)


_OVERLAP = "check_the_overlap_is_what_is_claimed"
_EVENTS = "check_nothing_that_happens_changes_an_output"
_LAW = "check_rejection_keeps_the_law"
_GREEDY = "check_greedy_output_is_that_of_no_speculation"
_OFF = "standard deviations off the law"

_CASES: tuple[tuple[str, Callable[[], Any], str, str], ...] = (
    (
        "reads histories that it says not to need",
        of(ReadsHistories, overlaps=True),
        _OVERLAP,
        "the tree is the host's",
    ),
    ("ignores the step in flight", partial(Model, producer=BehindTheKnown), _OVERLAP, "root is"),
    ("mixes up the rows of the step in flight", partial(Model, producer=InOrderOfJoining), _OVERLAP, "root is"),
    (
        "hands out a tree that is still written",
        partial(Model, producer=WithoutMade),
        _OVERLAP,
        "`made` is None",
    ),
    ("reads drafts before they are made", partial(Model, producer=ReadsTooEarly), _EVENTS, "malformed|root is"),
    (
        "drafts by the clock",
        partial(Model, producer=LooksAtTheClock),
        "check_clocks_change_nothing",
        "where nothing is done before",
    ),
    (
        "claims to overlap and never does",
        of(ClaimsTooMuch, overlaps=True),
        _OVERLAP,
        "none of .* steps was launched",
    ),
    ("reads the grammar without saying so", of(ReadsTheGrammar), _GREEDY, "declares needs = 'grammar'"),
    ("loses what was preempted", of(BeginsWithAPrompt), _EVENTS, "KeyError"),
    (
        "counts on a commit behind each step",
        of(EachStepCommits),
        "check_a_failed_forward_fails_its_step_alone",
        "a step without a commit",
    ),
    ("keeps what it knows by row", of(NotedByRow), _EVENTS, "root is"),
    (
        "fails the batch at a dead end",
        of(FailsAtDeadEnds),
        "check_a_failing_grammar_fails_its_request_alone",
        "nothing to draft from",
    ),
    (
        "refuses sampled requests in the decode loop",
        of(RefusesSampled),
        "check_sampled_output_is_that_of_no_speculation",
        "only greedy requests",
    ),
    ("cuts nodes on the device, not their links", of(CutsOnTheDevice), _GREEDY, "which is padding"),
    ("prunes draws", drawn(PrunesDraws), _LAW, _OFF),
    ("takes the likeliest and says it was drawn", drawn(TakesTheBest), _LAW, _OFF),
    ("states q without the temperature", drawn(ForgetsTheTemperature), _LAW, _OFF),
    ("masks q after the draw", drawn(MasksAfterTheDraw), _LAW, _OFF),
    ("states the row of the next node", drawn(StatesTheNextRow), _LAW, _OFF),
    (
        "says that the best of its head are draws",
        of(TopOfItsHead, proposal=Proposal.SAMPLED, topology=Topology("tree", 3, 1)),
        _LAW,
        _OFF,
    ),
)

WORKERS = [Broken(fault, WORKER_CHECKS, make, check, finds) for fault, make, check, finds in _CASES]
