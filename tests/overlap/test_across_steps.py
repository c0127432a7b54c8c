"""A step is launched behind one whose result nobody has seen, where everything in it can do without."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch, SpecAlgorithm
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.ledger import StepResult
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.results import PublishedStep
from specgrammar.runtime.scheduler import StepRules, grammar_needs_sync
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_drafter import LateDrafter
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.requests import REQUESTS
from specgrammar.testing.toy_target import join_in_order
from specgrammar.trees.tree import DraftTree, HostTree
from tests.overlap.producers import DeviceDrafts
from tests.overlap.schedules import alone
from tests.toys import backend

MODEL = ChainAlgorithm(drafter="toy", num_draft_tokens=3)


def engine_of(algorithm: SpecAlgorithm, device: DelayedDevice, target: LateTarget | None = None) -> Engine:
    """An engine whose device does nothing before somebody waits for it, unless it was made otherwise."""
    adapter = LateAdapter(device, target or LateTarget(device), LateDrafter(device))
    config = Config(mask_policy="eager", max_batch_size=3)
    return Engine(adapter, backend("xgrammar"), algorithm, config, agree_joins=join_in_order)


def check_all(engine: Engine, requests: list[tuple[int, Request]]) -> None:
    """Every request comes to what it comes to alone."""
    outputs = {output.request_id: output for output in engine.generate([request for _, request in requests])}
    for number, request in requests:
        assert told(outputs[request.request_id]) == told(alone("xgrammar", number))


def told(output: RequestOutput) -> tuple[object, ...]:
    return output.token_ids, output.finish_reason


def numbered(*, with_grammar: bool | None = None) -> list[tuple[int, Request]]:
    """The pool's requests, all or those with or without a grammar."""
    return [
        (number, replace(request, request_id=str(number)))
        for number, request in enumerate(REQUESTS)
        if with_grammar is None or (request.grammar is not None) is with_grammar
    ]


def test_every_step_but_the_first_is_launched_before_the_last_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless all its requests have just joined, or those in flight are over with it."""
    device = DelayedDevice()
    engine = engine_of(MODEL, device)
    known: list[bool] = []
    verify = LateTarget.verify

    def seen(self: LateTarget, batch: DecodeBatch, tree: DraftTree) -> object:
        if batch.unresolved is not None:
            with pytest.raises(Exception, match="read before it was done"):
                batch.unresolved.value()
        known.append(batch.unresolved is None)
        return verify(self, batch, tree)

    monkeypatch.setattr(LateTarget, "verify", seen)
    check_all(engine, numbered())
    assert len(known) > 30
    assert sum(known) < len(known) / 4
    assert engine.trace.num_overlapped_steps == len(known) - sum(known)


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("with_grammar", [True, False])
def test_an_algorithm_that_does_not_overlap_with_a_grammar_runs_in_sync(
    overlaps: bool, with_grammar: bool
) -> None:
    device = DelayedDevice()
    engine = engine_of(DeviceDrafts(device, "nothing", overlaps=overlaps), device)
    check_all(engine, numbered(with_grammar=with_grammar))
    assert (engine.trace.num_overlapped_steps > 0) == (overlaps or not with_grammar)


@pytest.mark.parametrize(
    "algorithm", [NgramAlgorithm(), ChainAlgorithm(), DeviceDrafts(DelayedDevice(), "history")]
)
def test_an_algorithm_that_reads_histories_has_them(algorithm: SpecAlgorithm) -> None:
    device = DelayedDevice()
    if isinstance(algorithm, DeviceDrafts):
        algorithm = replace(algorithm, device=device)
    engine = engine_of(algorithm, device)
    check_all(engine, numbered())
    assert engine.trace.num_overlapped_steps == 0


def test_a_target_that_cannot_take_an_unresolved_batch_is_not_given_one() -> None:
    device = DelayedDevice()
    engine = engine_of(MODEL, device, LateTarget(device, supports_unresolved=False))
    check_all(engine, numbered())
    assert engine.trace.num_overlapped_steps == 0


def test_near_the_longest_length_steps_wait_for_one_another() -> None:
    """The target asserts that no path can leave its context, whatever the step in flight commits."""
    longest = max(len(r.prompt_tokens) + r.max_new_tokens for _, r in numbered())
    device = DelayedDevice()
    engine = engine_of(MODEL, device, LateTarget(device, max_length=longest))
    check_all(engine, numbered())
    assert 0 < engine.trace.num_overlapped_steps < engine.trace.num_steps - 2


def test_no_step_is_launched_for_a_request_that_is_over_with_the_last() -> None:
    """A limit of tokens is known beforehand: there are as many steps as tokens, although results are late."""
    device = DelayedDevice()
    engine = engine_of(NoSpeculation(), device)
    (output,) = engine.generate([Request("a", (1, 2), max_new_tokens=7)])
    assert len(output.token_ids) == 7
    assert output.num_verify_steps == engine.trace.num_steps == 7
    assert engine.trace.num_overlapped_steps == 6


def test_a_failed_step_fails_those_behind_it_and_the_engine_goes_on() -> None:
    """The failure comes out of the `step` that waits for it; both steps are taken again."""
    device = DelayedDevice()
    target = LateTarget(device)
    engine = engine_of(MODEL, device, target)
    engine.add(replace(REQUESTS[0], request_id="a"))
    verify, num_calls = target.verify, 0

    def failing(batch: DecodeBatch, tree: DraftTree) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls != 3:
            return verify(batch, tree)

        def fail() -> None:
            raise RuntimeError("device error")

        return device.launch(fail, "forward")

    target.verify = failing  # type: ignore[method-assign, assignment]  # the planted fault
    assert engine.step() == engine.step() == engine.step() == []
    with pytest.raises(RuntimeError, match="device error"):
        engine.step()
    (output,) = engine.generate([])
    assert told(output) == told(alone("xgrammar", 0))


class Late:
    """Paths that are not there yet."""

    def done(self) -> bool:
        return False

    def value(self) -> AcceptedPaths:
        raise AssertionError

    wait = value


def published(has_grammar: bool = True, is_known: bool = False) -> PublishedStep:
    tree = HostTree.from_chains([[0, 1, 2, 3]])
    return PublishedStep(0, ("a",), tree, np.zeros(4, np.int8), Late(), is_known, 4, has_grammar)


def test_one_place_says_who_waits_and_why() -> None:
    free = StepRules("nothing", True, True, max_nodes=4, max_length=100)
    step = published()

    def why(scheduler: StepRules, longest: int = 10, has_grammar: bool = True) -> str:
        return scheduler.why_wait(step, longest, has_grammar)

    assert why(free) == ""
    assert free.why_wait(None, 10, True) == ""
    assert free.why_wait(published(is_known=True), 10, True) == "its result is there"
    assert why(replace(free, needs="history")) == "drafts need the history"
    assert why(replace(free, needs="grammar")) == "drafts need the grammar"
    assert why(replace(free, supports_unresolved=False)) == "the target needs the histories"
    assert why(replace(free, supports_grammar_overlap=False)) == "the algorithm does not overlap with a grammar"
    assert why(free, longest=93) == ""  # 93 + 4 tokens of the step in flight + 3 drafts
    assert why(free, longest=94) == "a request is near its longest length"
    assert why(replace(free, max_length=None), longest=10**6) == ""


@pytest.mark.parametrize(
    ("pending", "queued_has", "next_has", "overlaps", "expected"),
    [
        (False, True, True, False, False),
        (True, True, True, True, False),
        (True, True, True, False, True),
        (True, True, False, False, True),  # the grammar left, but what is queued carries it
        (True, False, True, False, True),
        (True, False, False, False, False),
    ],
)
def test_the_one_sync_decision(
    pending: bool, queued_has: bool, next_has: bool, overlaps: bool, expected: bool
) -> None:
    queued = published(queued_has) if pending else None
    assert grammar_needs_sync(queued, next_has, overlaps) is expected


@pytest.mark.parametrize("aborts", [False, True])
def test_an_id_that_is_used_again_at_once_is_another_request(aborts: bool) -> None:
    """The step in flight was launched for the request that had the id before, and perhaps has tokens for it."""
    for number, request in numbered(with_grammar=False):  # which join at once: there is nothing to compile
        engine = engine_of(MODEL, DelayedDevice())
        engine.add(Request("long", (1, 2, 3), GrammarSpec.regex("(ab){80}"), max_new_tokens=200))
        engine.add(Request("a", (2, 3), max_new_tokens=9))
        outputs = [*engine.step(), *engine.step()]
        if aborts:
            engine.abort("a")
            engine.add(replace(request, request_id="a"))
            outputs = engine.step()
        else:
            while not outputs:
                outputs = engine.step()
            engine.add(replace(request, request_id="a"))
            assert engine.step() == []
        assert [output.request_id for output in outputs] == ["a"]
        assert "a" in engine._running
        outputs = []
        while not outputs:
            outputs = engine.step()
        assert told(outputs[0]) == told(alone("xgrammar", number))


@pytest.mark.parametrize("algorithm", [MODEL, NoSpeculation()])
def test_replicas_take_the_same_steps_whatever_their_clocks_say(algorithm: SpecAlgorithm) -> None:
    """Invariant 13: one device has always done everything, the other nothing before somebody waits."""
    shapes: list[list[tuple[int, ...]]] = []
    for schedule in (lambda _: 0, lambda num_pending: num_pending):
        engine = engine_of(algorithm, DelayedDevice(schedule))
        seen: list[tuple[int, ...]] = []
        count = engine.trace.count

        def counted(*arguments: Any, seen: list[tuple[int, ...]] = seen, count: Any = count) -> None:
            seen.append(tuple(arguments[1].tolist()))
            count(*arguments)

        engine.trace.count = counted  # type: ignore[method-assign, assignment]  # to look on
        check_all(engine, numbered()[:12])
        shapes.append(seen)
    assert shapes[0] == shapes[1]


def test_a_step_is_forgotten_with_the_one_behind_it() -> None:
    """Each is launched behind the one before, and none holds it for longer than it needs to."""
    engine = engine_of(NoSpeculation(), DelayedDevice())
    engine.add(Request("a", (1, 2), GrammarSpec.regex("(ab){80}"), max_new_tokens=60))
    alive: WeakSet[PublishedStep] = WeakSet()
    outputs: list[RequestOutput] = []
    gc.freeze()  # what was there before need not be looked at 60 times
    try:
        while not outputs:
            outputs = engine.step()
            if (queued := engine._scheduler.queued) is not None:
                alive.add(queued)
            del queued
            gc.collect()
            assert len(alive) <= 2
        assert engine.trace.num_overlapped_steps > 30
        gc.collect()
        assert not alive
    finally:
        gc.unfreeze()


def test_an_interrupted_wait_loses_nothing() -> None:
    device = DelayedDevice()
    engine = engine_of(MODEL, device)
    engine.add(replace(REQUESTS[0], request_id="a"))
    engine.step()
    wait, num_calls = PublishedStep.wait, 0

    def interrupted(step: PublishedStep) -> StepResult:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise KeyboardInterrupt
        return wait(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedStep, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    (output,) = engine.generate([])
    assert told(output) == told(alone("xgrammar", 0))
