"""`Driver`: an engine's part in a producer's life, without grammars and without sampling.

It proposes, verifies and commits as an engine does, but what is committed is drawn: any path of the tree, and
any token behind it. Requests join, sit out, are taken out and put back, and end; ids are used again; steps fail
and are taken again; commits are told late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from specgrammar.errors import ConformanceError
from specgrammar.grammar.staging import from_chain, from_device
from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.spec import Commit, DecodeBatch, RequestView, SpecAlgorithm, TreeProducer
from specgrammar.protocols.staging import Device
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.outcome import Outcome
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.checks.base import Story, expect
from specgrammar.testing.proposals import JUDGES, Judge, Made
from specgrammar.testing.schedules import Choose
from specgrammar.testing.world import MAX_BATCH_SIZE, World, context_of
from specgrammar.trees.tree import DraftTree, HostTree

_IDS = ("a", "b", "c", "d")
_LIMITS = (0, 1, 2, 3, 9, 100)


class NothingMoreError(Exception):
    """A proposal is broken in a way that another check looks for: this play cannot go on."""


@dataclass
class Drafted:
    """A request that is drafted for."""

    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams

    def view(self, request_id: str, max_draft_tokens: int = 100) -> RequestView:
        """What the producer sees of it: the list itself, as an engine shows it."""
        return RequestView(request_id, self.tokens, self.num_prompt_tokens, max_draft_tokens, self.sampling)


@dataclass
class Driver:
    """One producer and what is done to it.

    Attributes:
        world: whose target it drafts for.
        algorithm: whose producer it is.
        adapter: opened in that world.
        story: is told what is done.
        judge: looks at each proposal.
        look: is given each proposal.
        guards_views: whether it is an error, here, to change what a batch shows.
        requests: in flight, by id.
    """

    world: World
    algorithm: SpecAlgorithm
    adapter: EngineAdapter
    story: Story
    judge: Judge = lambda _: None
    look: Callable[[Made], None] = lambda _: None
    guards_views: bool = False
    requests: dict[str, Drafted] = field(default_factory=dict)
    _step: int = 0
    _commits: list[list[Commit]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producer: TreeProducer = self.algorithm.make_producer(context_of(self.adapter))

    def play(self, choose: Choose, num_steps: int) -> None:
        """Take some drawn steps."""
        for _ in range(num_steps):
            self._change(choose)
            if not choose(3):
                self.tell()
            ids = [name for name in self.requests if choose(6) < 5]
            if choose(2):
                ids.reverse()
            limits = [_LIMITS[choose(len(_LIMITS))] for _ in ids]
            self.step(choose, ids, limits, fails=choose(8) == 7)

    def join(self, request_id: str, prompt: list[int], sampling: SamplingParams | None = None) -> None:
        """A request joins; whatever was committed is told before, as `finished` frees an id."""
        self.tell()
        self.story.tell(f"{request_id!r} joins with prompt {self.world.show(prompt)}")
        self.adapter.target.add(request_id, prompt)
        self.requests[request_id] = Drafted(list(prompt), len(prompt), sampling or SamplingParams())

    def end(self, request_id: str) -> None:
        """A request ends outside of a step (it is aborted)."""
        self.story.tell(f"{request_id!r} is aborted")
        self._commits.append([Commit(request_id, (), 0, 0, finished=True)])
        self.tell()
        self.adapter.target.remove(request_id)
        del self.requests[request_id]

    def tell(self) -> None:
        """Let the producer observe what was committed."""
        commits, self._commits = self._commits, []
        for told in commits:
            self.producer.observe(told)

    def propose(self, ids: list[str], limits: list[int]) -> Made:
        """Ask for drafts, and judge them."""
        views = tuple(self.requests[name].view(name, limit) for name, limit in zip(ids, limits, strict=True))
        batch = DecodeBatch(self._step, views)
        before = [list(view.tokens) for view in views]
        told = ", ".join(f"{name!r} (at most {limit})" for name, limit in zip(ids, limits, strict=True))
        self.story.tell(f"step {batch.step}: propose for {told or 'nobody'}")
        tree = self.producer.propose(batch)
        for view, tokens in zip(views, before, strict=True):
            if list(view.tokens) == tokens:
                continue
            expect(
                not self.guards_views,
                f"propose changed the tokens of request {view.request_id!r} to {self.world.show(view.tokens)}; "
                f"expected {self.world.show(tokens)} as it was: views are read only",
            )
            raise NothingMoreError
        made = self._made(batch, tree, before)
        self._step += 1
        self.judge(made)
        self.look(made)
        try:
            for judge in JUDGES:
                judge(made)
        except ConformanceError:
            raise NothingMoreError from None
        return made

    def step(self, choose: Choose, ids: list[str], limits: list[int], *, fails: bool = False) -> None:
        """Propose, verify, and commit what is drawn; where the step fails nothing is committed."""
        made = self.propose(ids, limits)
        if not ids:
            return
        if fails:
            self.story.tell("the step fails; nothing is committed")
            return
        batch = DecodeBatch(made.step, tuple(made.requests))
        self.adapter.target.verify(batch, made.tree).wait()
        paths, commits = self._accepted(choose, made)
        self.adapter.target.commit(batch, Outcome(lambda: paths))
        for commit in commits:
            self.requests[commit.request_id].tokens += commit.tokens
            self.story.tell(
                f"{commit.request_id!r} commits {self.world.show(commit.tokens)}"
                f"{', and is finished' if commit.finished else ''}"
            )
        self._commits.append(commits)
        over = [commit.request_id for commit in commits if commit.finished]
        if over:
            self.tell()
        for request_id in over:
            self.adapter.target.remove(request_id)
            del self.requests[request_id]

    def _change(self, choose: Choose) -> None:
        free = [name for name in _IDS[:MAX_BATCH_SIZE] if name not in self.requests]
        if free and (not self.requests or choose(3) == 2):
            tokens = self.world.tokens
            prompt = [tokens[choose(len(tokens))] for _ in range(1 + choose(8))]
            temperature = (0.0, 1.0, 0.7)[choose(3)]
            self.join(free[choose(len(free))], prompt, SamplingParams(temperature=temperature, seed=choose(9)))
        elif choose(10) == 9:
            request_id = list(self.requests)[choose(len(self.requests))]
            if not choose(2):
                self.end(request_id)
            else:
                self._preempt(request_id)

    def _preempt(self, request_id: str) -> None:
        """Take a request out and put it back: its producer is told that it is finished, its tokens stay."""
        request = self.requests[request_id]
        self.end(request_id)
        self.story.tell(f"{request_id!r} was preempted, and goes on behind {self.world.show(request.tokens)}")
        self.adapter.target.add(request_id, request.tokens)
        self.requests[request_id] = request

    def _accepted(self, choose: Choose, made: Made) -> tuple[AcceptedPaths, list[Commit]]:
        host, parents = made.host, made.host.parents()
        paths, commits = list[list[int]](), list[Commit]()
        for row, view in enumerate(made.requests):
            nodes = host.request_slice(row)
            path, tokens = [0], list[int]()
            while len(tokens) < view.max_draft_tokens:
                children = np.flatnonzero((parents[nodes] == path[-1]) & (host.draft_tokens[nodes] >= 0))
                if not len(children) or not choose(4):
                    break
                path.append(int(children[choose(len(children))]))
                tokens.append(int(host.draft_tokens[nodes.start + path[-1]]))
            tokens.append(self.world.tokens[choose(len(self.world.tokens))])
            num_drafts = int((host.draft_tokens[nodes] >= 0).sum()) - 1
            finished = view.max_draft_tokens < 100 and choose(6) == 4  # neither the least choice nor the last
            paths.append(path)
            commits.append(Commit(view.request_id, tuple(tokens), num_drafts, len(path) - 1, finished))
        index = np.full((len(paths), max(map(len, paths))), -1, np.int64)
        for row, path in enumerate(paths):
            index[row, : len(path)] = path
        lengths = np.array([len(path) - 1 for path in paths], np.int64)
        bonus = np.array([commit.tokens[-1] for commit in commits], np.int64)
        return AcceptedPaths(index, lengths, bonus), commits

    def _made(self, batch: DecodeBatch, tree: DraftTree, tokens: list[list[int]]) -> Made:
        views = tuple(
            RequestView(
                view.request_id, tuple(known), view.num_prompt_tokens, view.max_draft_tokens, view.sampling
            )
            for view, known in zip(batch.requests, tokens, strict=True)
        )
        return Made(
            batch.step,
            views,
            [known[-1] for known in tokens],
            tree,
            on_host(tree, self.adapter.device),
            self.algorithm.topology,
            self.algorithm.proposal,
            self.world.vocabulary.vocab_size,
            self.world.show,
        )


def on_host(tree: DraftTree, device: Device) -> HostTree:
    """The tree's own arrays where it has any; the links of chains follow from what the device has of them."""
    if not isinstance(tree, DraftTree):
        raise ConformanceError(f"propose returned a {type(tree).__name__}; expected a DraftTree")
    if tree.host is not None:
        return tree.host
    if tree.device.retrieve_next_token is not None:
        return from_device(device).stage(tree).resolve()
    return from_chain(device).stage(tree).resolve()


def arrays(made: Made) -> dict[str, object]:
    """All that a proposal says, as comparable lists."""
    host, tree = made.host, made.tree
    parts = {
        "cu_nodes": host.cu_nodes,
        "draft_tokens": host.draft_tokens,
        "retrieve_next_token": host.retrieve_next_token,
        "retrieve_next_sibling": host.retrieve_next_sibling,
        "score": tree.score,
        "source": tree.source,
        "row_of_node": None if tree.sampled is None else tree.sampled.row_of_node,
        "q": None if tree.sampled is None else tree.sampled.q.cpu().numpy(),
    }
    return {name: None if part is None else np.asarray(part).tolist() for name, part in parts.items()}
