"""Schedules: what users and a stream do to an engine, and what has to come out whatever they do.

`run_schedule` plays one, drawn number by number from a `Choose`. Requests are added at any step, under ids that
others had before, refused by a cache that is full, aborted, preempted and resumed; forwards, copies and drafts
run late; some drafts are of a step before. Every request's output must be that of the request alone on a device
where all is done at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from random import Random
from typing import get_args

import numpy as np

from specgrammar.config import Config
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.protocols.spec import Needs, SpecAlgorithm
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.ledger import Entry
from specgrammar.runtime.masking import EagerMasking, MaskParts
from specgrammar.runtime.policy import AutoMasking
from specgrammar.runtime.request import RequestOutput
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_drafter import LateDrafter
from specgrammar.testing.late_target import OUT_OF_MEMORY, LateAdapter, LateTarget
from specgrammar.testing.toy_target import ToyAdapter, join_in_order
from tests.overlap.producers import Choose, DeviceDrafts, LateProducer, SometimesLate
from tests.overlap.requests import REQUESTS
from tests.toys import BACKEND_NAMES, backend

ALGORITHMS = ("none", "ngram", "chain", "model", "device")
POLICIES = ("eager", "lazy", "auto")
_MOST_REQUESTS = 5


class Seeded:
    """Numbers that a seed decides, and which they were.

    Attributes:
        chosen: all of them: the schedule.
    """

    def __init__(self, seed: int) -> None:
        self.chosen: list[int] = []
        self._random = Random(seed)

    def __call__(self, n: int) -> int:
        """A number in [0, n)."""
        self.chosen.append(self._random.randrange(n))
        return self.chosen[-1]


@cache
def alone(name: str, number: int) -> RequestOutput:
    """What a request of the pool comes to by itself, one token after the other, nothing late."""
    config = Config(backend=name, mask_policy="eager", max_batch_size=1)
    engine = Engine(ToyAdapter(), backend(name), NoSpeculation(), config)
    (output,) = engine.generate([REQUESTS[number]])
    return output


@dataclass
class Play:
    """One engine and what was done to it.

    Attributes:
        engine: over a `LateTarget` on `device`.
        numbers: of the pool, of each request in the order in which they were added.
        in_flight: the request that has an id now; ids are used again as soon as they are free.
        aborted: requests.
        outputs: by request.
        entries: the books of every request that was seen running.
        counts: how often what was done.
    """

    engine: Engine
    target: LateTarget
    device: DelayedDevice
    backend: str
    choose: Choose
    numbers: list[int] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Do things until all is done."""
        num_requests = 1 + self.choose(_MOST_REQUESTS)
        for _ in range(1 + self.choose(num_requests)):
            self._add()
        while self.engine.has_work or self.engine._preempted or len(self.numbers) < num_requests:
            operation = self.choose(14)
            away = sorted(set(self.engine._preempted) - set(self.engine._resuming))
            if len(self.numbers) < num_requests and (operation < 2 or not self.engine.has_work):
                self._add()
            elif away and (operation in (2, 3) or not self.engine.has_work):
                self.engine.resume(self._one_of(away))
                self.counts["resumed"] += 1
            elif operation == 4 and self.engine._running:
                self._preempt(self._one_of(sorted(self.engine._running)))
            elif operation == 5 and self.choose(2):
                self._abort(self._one_of([*sorted(self.in_flight), "nobody"]))
            else:
                self._step()

    def _one_of(self, ids: list[str]) -> str:
        return ids[self.choose(len(ids))]

    def _add(self) -> None:
        request_id = next(name for name in map(str, count()) if name not in self.in_flight)
        self.in_flight[request_id] = len(self.numbers)
        self.numbers.append(self.choose(len(REQUESTS)))
        self.engine.add(replace(REQUESTS[self.numbers[-1]], request_id=request_id))

    def _preempt(self, request_id: str) -> None:
        self.engine.preempt(request_id)
        self.counts["preempted"] += request_id in self.engine._preempted

    def _abort(self, request_id: str) -> None:
        self.counts["aborted while away"] += request_id in self.engine._preempted
        self.engine.abort(request_id)
        if request_id in self.in_flight:
            self.counts["aborted"] += 1
            self.aborted.add(self.in_flight[request_id])

    def _step(self) -> None:
        before = set(self.engine._running)
        for output in self.engine.step():
            assert output.request_id in self.in_flight, "a request ended twice"
            self.outputs[self.in_flight.pop(output.request_id)] = output
        for request_id, entry in self.engine._parts.ledger.entries.items():
            self.entries[self.in_flight[request_id]] = entry
        joined = set(self.engine._running) - before
        self.counts["steps"] += 1
        self.counts["mixed"] += bool(joined and before & set(self.engine._running))
        self.counts["together"] += len(self.engine._running) > 1

    def check_outputs(self) -> None:
        """Every request came out once, with what it comes to alone; one that was cut short with a beginning."""
        assert len(self.outputs) == len(self.numbers), "a request is missing"
        for request, output in self.outputs.items():
            expected = alone(self.backend, self.numbers[request])
            is_refused = OUT_OF_MEMORY in (output.error or "")
            if output.finish_reason == "abort" or is_refused:
                assert is_refused or request in self.aborted, "ended as aborted, which it was not"
                self.counts["refused"] += is_refused
                num_tokens = len(output.token_ids)
                assert output.token_ids == expected.token_ids[:num_tokens], "not a beginning of its tokens"
                continue
            found, alike = _told(output), _told(expected)
            assert found == alike, f"another output than alone: {found} instead of {alike}"
            assert (output.logprobs is None) == (expected.logprobs is None)
            if output.logprobs is not None and expected.logprobs is not None:
                np.testing.assert_allclose(output.logprobs, expected.logprobs, rtol=1e-4)

    def check_nothing_is_left(self) -> None:
        """No cache, no books, no slot, no work, and no grammar that is not where its history is."""
        self.device.run_all()
        for work in self.target.works:
            work.value()
        assert not self.target.cache, "requests are left in the target's cache"
        ledger = self.engine._parts.ledger
        assert not [*ledger.entries, *ledger._published], "requests are left in the ledger"
        ring = mask_parts_of(self.engine).allocator
        assert isinstance(ring, BitmaskRing)
        assert not any(slot.held for slot in ring._slots), "a slot is held"
        assert not self.engine.has_work
        for entry in self.entries.values():
            session = entry.session
            assert entry.tokens[entry.num_prompt_tokens :] == session.output, "history and output differ"
            assert not session._ahead, "the grammar is ahead of the history"
            if session.cursor is not None and session.error is None:
                assert not session.cursor._trail, "the grammar has moves that are not settled"
                assert session._num_advanced == len(session.output), "the grammar is behind the history"


def _told(output: RequestOutput) -> tuple[object, ...]:
    """All but the error's words: a dead end behind accepted drafts is told in others than one at a root."""
    return output.token_ids, output.text, output.finish_reason, output.grammar_engaged


def mask_parts_of(engine: Engine) -> MaskParts:
    """What the engine masks with."""
    masking = engine._parts.masking
    one = masking._policies["eager"] if isinstance(masking, AutoMasking) else masking
    assert isinstance(one, EagerMasking | LazyMasking)
    return one.parts


def delays(choose: Choose) -> DelayedDevice:
    """A stream that runs nothing before somebody waits, everything at once, now and then, or as it comes."""
    kind, shares_host_memory = choose(5), bool(choose(2))
    if kind == 0:
        return DelayedDevice(shares_host_memory=shares_host_memory)
    if kind == 1:
        return DelayedDevice(lambda num_pending: num_pending, shares_host_memory=shares_host_memory)
    seldom = 4 if kind == 2 else 1
    return DelayedDevice(
        lambda num_pending: choose(num_pending + 1) if not choose(seldom) else 0,
        shares_host_memory=shares_host_memory,
    )


def algorithm_of(name: str, device: DelayedDevice, choose: Choose) -> SpecAlgorithm:
    """An algorithm whose drafts may be late."""
    made: dict[str, SpecAlgorithm] = {
        "none": NoSpeculation(),
        "ngram": NgramAlgorithm(),
        "chain": ChainAlgorithm(),
        "model": ChainAlgorithm(drafter="toy", num_draft_tokens=1 + choose(3)),
        "device": DeviceDrafts(device, get_args(Needs)[choose(3)], overlaps=choose(3) > 0),
    }
    return SometimesLate(made[name], choose)


def run_schedule(choose: Choose, algorithm: str | None = None, policy: str | None = None) -> Counter[str]:
    """Play one schedule and check what came out; how often what happened.

    Args:
        choose: draws it.
        algorithm: one of `ALGORITHMS`; None to draw it.
        policy: one of `POLICIES`; None to draw it.
    """
    name = BACKEND_NAMES[choose(len(BACKEND_NAMES))]
    device = delays(choose)
    algorithm = algorithm or ALGORITHMS[choose(len(ALGORITHMS))]
    policy = policy or POLICIES[choose(len(POLICIES))]
    config = Config.from_dict({"backend": name, "mask_policy": policy, "max_batch_size": 1 + choose(4)})
    target = LateTarget(device, is_full=lambda: not choose(40))
    engine = Engine(
        LateAdapter(device, target, LateDrafter(device)),
        backend(name),
        algorithm_of(algorithm, device, choose),
        config,
        agree=lambda _: ("eager", "lazy")[choose(2)],  # not what the clock says
        agree_joins=join_in_order,
    )
    if (workers := mask_parts_of(engine).workers) is not None:  # as many as the schedule says, not the clock
        workers.__dict__["num_threads"] = lambda _: 1 + choose(2)
    play = Play(engine, target, device, name, choose)
    play.run()
    play.check_outputs()
    play.check_nothing_is_left()
    producer = engine.producer
    assert isinstance(producer, LateProducer)
    play.counts["late drafts"] = producer.num_late
    play.counts["stale drafts"] = engine.trace.num_stale_drafts
    play.counts["overlapped"] = engine.trace.num_overlapped_steps
    play.counts[algorithm] = play.counts[policy] = play.counts[name] = 1
    return play.counts
