"""Checks of `SpecAlgorithm` and `TreeProducer`: of every tree that is proposed, and of what is declared."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Any, get_args

from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    Needs,
    Proposal,
    Topology,
    supports_grammar_overlap,
)
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.checks.base import Checks, CheckSkipped, Story, expect, same, telling
from specgrammar.testing.checks.smallest import grow
from specgrammar.testing.driver import Driver, NothingMoreError, arrays
from specgrammar.testing.failing import DraftError, FailingDrafts
from specgrammar.testing.proposals import (
    JUDGES,
    Judge,
    Made,
    judge_draws,
    judge_form,
    judge_nodes,
    judge_place,
    judge_size,
    judging,
)
from specgrammar.testing.schedules import Choose, Listed
from specgrammar.testing.world import TOY_WORLD, MakeAlgorithm, World, context_of

PRODUCER_CHECKS = Checks("producer")

_NUM_PLAYS = 20


@contextmanager
def driven(make: MakeAlgorithm, world: World, story: Story, **given: Any) -> Iterator[Driver]:
    """A fresh producer of an algorithm, and who drives it; it ends where nothing more can be done."""
    with world.opened(InlineDevice()) as adapter, suppress(NothingMoreError):
        yield Driver(world, make(), adapter, story, **given)


def drive(make: MakeAlgorithm, world: World, judge: Judge) -> None:
    """Judge every proposal of drawn plays."""

    def play(choose: Choose, story: Story, size: float) -> None:
        with driven(make, world, story, judge=judge) as driver:
            driver.play(choose, max(1, round(size * world.num_steps)))

    grow(world.num(_NUM_PLAYS), play)


@PRODUCER_CHECKS.add(invariant=10)
def check_an_algorithm_is_a_value(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:  # noqa: ARG001  # as all
    """An algorithm is a frozen, hashable value that declares its api_version, topology and proposal."""
    algorithm: Any = make()
    expect(algorithm == make(), "two algorithms of the same options differ; make it a frozen dataclass")
    expect(hash(algorithm) == hash(make()), "two equal algorithms have different hashes")
    same("api_version", getattr(algorithm, "api_version", None), ALGORITHM_API_VERSION)
    topology, kind = algorithm.topology, algorithm.proposal
    expect(isinstance(topology, Topology), f"topology is a {type(topology).__name__}; expected a Topology")
    expect(
        topology.kind in ("chain", "tree"), f"topology.kind is {topology.kind!r}; expected 'chain' or 'tree'"
    )
    expect(
        0 <= topology.max_depth < topology.max_nodes,
        f"the topology has max_nodes {topology.max_nodes} (root included) and max_depth {topology.max_depth} "
        "(root not); expected at least 1 and 0",
    )
    expect(isinstance(kind, Proposal), f"proposal is {kind!r}; expected a member of Proposal")
    try:
        algorithm.api_version = ALGORITHM_API_VERSION
    except AttributeError:
        return
    expect(
        False, "its attributes can be set; make it a frozen dataclass: a value that is shared must not change"
    )


@PRODUCER_CHECKS.add(invariant=10)
def check_what_is_claimed_fits(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """`needs` is one of the known ones, and only what needs `nothing` claims to overlap with the grammar."""
    algorithm = make()
    with world.opened(InlineDevice()) as adapter:
        producer: Any = algorithm.make_producer(context_of(adapter))
    needs = getattr(producer, "needs", None)
    expect(needs in get_args(Needs), f"needs is {needs!r}; expected one of {get_args(Needs)}")
    member = getattr(algorithm, "supports_grammar_overlap", None)
    if member is not None:
        answer = member() if callable(member) else member
        expect(
            callable(member) and isinstance(answer, bool),
            f"supports_grammar_overlap is {member!r} and answers {answer!r}; expected a method, and a bool",
        )
    expect(
        needs == "nothing" or not supports_grammar_overlap(algorithm),
        f"supports_grammar_overlap() is True, but the producer needs {needs!r}, which a step in flight has not "
        "given yet; expected False, or needs 'nothing'",
    )


@PRODUCER_CHECKS.add(invariant=3)
def check_trees_are_well_formed(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Arrays, links and ids of every proposal are those of a valid tree, padding linked to nothing."""
    drive(make, world, judge_form)


@PRODUCER_CHECKS.add(invariant=7)
def check_trees_belong_to_their_batch(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """A tree carries its batch's step, has its requests in their order, and begins with their last tokens."""
    drive(make, world, judging(judge_form, judge_place))


@PRODUCER_CHECKS.add(invariant=10)
def check_trees_are_as_small_as_declared(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """No tree exceeds the topology or a request's `max_draft_tokens`; siblings differ, and a chain has none."""
    drive(make, world, judging(judge_form, judge_size))


@PRODUCER_CHECKS.add(invariant=3)
def check_what_is_said_of_nodes(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """`score` is float32 in [0, 1] or NaN and `source` int16 into `sources`, each with one entry a node."""
    drive(make, world, judge_nodes)


@PRODUCER_CHECKS.add(invariant=11)
def check_draws_state_their_distributions(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Only a SAMPLED algorithm states q, whose rows sum to 1 and give each node's token a probability."""
    drive(make, world, judge_draws)


@PRODUCER_CHECKS.add(invariant=6)
def check_views_are_read_only(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """`propose` leaves the batch as it was: its `tokens` may be the ledger's own list."""

    def play(choose: Choose, story: Story, size: float) -> None:
        with driven(make, world, story, guards_views=True) as driver:
            driver.play(choose, max(1, round(size * world.num_steps)))

    grow(world.num(10), play)


@PRODUCER_CHECKS.add(invariant=3)
def check_an_empty_batch_gives_an_empty_tree(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """A batch without requests gives a tree without nodes, before and behind others."""
    story = Story()
    with telling(story), driven(make, world, story, judge=judging(*JUDGES)) as driver:
        driver.propose([], [])
        driver.join("a", list(world.tokens))
        driver.step(lambda _: 0, ["a"], [100])
        driver.propose([], [])


@PRODUCER_CHECKS.add(invariant=10)
def check_a_request_may_need_no_drafts(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """A request whose `max_draft_tokens` is 0 gets its root alone, whatever the others of its batch get."""
    story = Story()
    with telling(story), driven(make, world, story, judge=judging(*JUDGES)) as driver:
        for name in ("a", "b", "c"):
            driver.join(name, [*world.tokens, *world.tokens])
        for limits in ([0, 0, 0], [0, 100, 1], [2, 0, 0], [0, 0, 0]):
            driver.step(lambda n: n - 1, ["a", "b", "c"], limits)


@PRODUCER_CHECKS.add(invariant=7)
def check_an_id_may_be_used_again(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Behind `finished` an id may be another request's, of which nothing of the old one's is left."""
    tokens = world.tokens

    def play(choose: Choose, story: Story, size: float) -> None:
        drawn = [
            [tokens[choose(len(tokens))] for _ in range(1 + choose(round(12 * size) + 1))] for _ in range(2)
        ]
        with driven(make, world, story, judge=judging(*JUDGES)) as driver:
            for prompt in drawn:
                driver.join("a", prompt)
                for _ in range(3):
                    if "a" in driver.requests:
                        driver.step(choose, ["a"], [100])
                if "a" in driver.requests:
                    driver.end("a")

    grow(world.num(10), play)


@PRODUCER_CHECKS.add(invariant=9)
def check_a_failure_is_over_with_its_step(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Where drafting fails, `propose` or its launched work raises, and the next proposal is as good as ever."""

    def play(choose: Choose, story: Story, _size: float) -> None:
        with world.opened(InlineDevice()) as adapter, suppress(NothingMoreError):
            failing = FailingDrafts(adapter, 1 + choose(3))
            driver = Driver(world, make(), failing, story, judge=judging(*JUDGES))
            for name in ("a", "b"):
                driver.join(name, [*world.tokens, world.tokens[0]])
            for _ in range(5):
                try:
                    driver.step(choose, sorted(driver.requests), [100] * len(driver.requests))
                except DraftError:
                    story.tell("drafting fails, as it was made to")

    grow(world.num(6), play)


@PRODUCER_CHECKS.add(invariant=13)
def check_replicas_propose_alike(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """Two producers that are told the same propose the same trees, with the same scores and distributions."""

    def play(choose: Choose, story: Story, size: float) -> None:
        seen: list[list[dict[str, object]]] = []
        drawn: list[int] = []

        def noted(n: int) -> int:
            drawn.append(choose(n))
            return drawn[-1]

        for numbers in (noted, Listed(drawn)):
            seen.append([])
            story.clear()
            with driven(make, world, story, look=_keep_in(seen[-1])) as driver:
                driver.play(numbers, round(size * world.num_steps) + 1)
        for step, (one, other) in enumerate(zip(*seen, strict=False)):
            for name, part in one.items():
                expect(
                    part == other[name],
                    f"step {step}: {name} is {_short(part)} in one replica, {_short(other[name])} in the other",
                )

    grow(world.num(10), play)


@PRODUCER_CHECKS.add(invariant=9)
def check_finished_requests_are_forgotten(make: MakeAlgorithm, world: World = TOY_WORLD) -> None:
    """What a request made a producer keep is free once it is told that the request is finished."""
    if not world.has_any_device:
        raise CheckSkipped("the prompts of many requests would take too long here")
    length = 512
    try:
        of_the_kit = _left_behind(NoSpeculation, world, length)
        left = _left_behind(make, world, length) - of_the_kit
    except NothingMoreError:
        return
    expect(
        left < length,
        f"whenever requests with prompts of {length} tokens came and were finished, each left {left:,.0f} "
        "bytes behind or more; forget a request when a commit says `finished`",
    )


def _left_behind(make: MakeAlgorithm, world: World, length: int) -> float:
    """Bytes that a finished request leaves behind, in the best of several rounds.

    Memory that is kept for the next requests grows now and then, what is never forgotten in every round.
    """
    num_each, num_rounds, story = 16, 4, Story()
    texts = [token for token, text in enumerate(world.vocabulary.tokens) if text]
    with telling(story), driven(make, world, story, judge=judge_place) as driver:

        def serve(round_: int) -> int:
            for number in range(round_ * num_each, (round_ + 1) * num_each):
                name = f"request {number}"
                # No summary of it is short. The same ones each round, so that the world learns nothing.
                driver.join(name, Random(number % num_each).choices(texts, k=length))
                driver.step(lambda n: n - 1, [name], [2])
                if name in driver.requests:
                    driver.end(name)
                story.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        serve(0)
        tracemalloc.start()
        try:
            held = [serve(round_) for round_ in range(1, num_rounds + 2)]
        finally:
            tracemalloc.stop()
    return min(after - before for before, after in pairwise(held)) / num_each


def _keep_in(seen: list[dict[str, object]]) -> Callable[[Made], None]:
    return lambda made: seen.append(arrays(made))


def _short(part: object) -> str:
    text = str(part)
    return text if len(text) < 200 else f"{text[:200]}…"
