"""Schedules over everything that is installed, with drafts that are late, and what is left of them inside.

`run_schedule` plays one; see `specgrammar.testing.schedules`. Beside the outputs it looks at what only this
library's own tests know: books, slots, caches, grammars.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache, partial
from typing import get_args

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
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.requests import REQUESTS
from specgrammar.testing.schedules import Choose, Schedule, delays
from specgrammar.testing.toy_target import ToyAdapter, join_in_order
from tests.overlap.producers import DeviceDrafts, LateProducer, SometimesLate
from tests.toys import BACKEND_NAMES, backend

ALGORITHMS = ("none", "ngram", "chain", "model", "device")
POLICIES = ("eager", "lazy", "auto")


@cache
def alone(name: str, number: int) -> RequestOutput:
    """What a request of the pool comes to by itself, one token after the other, nothing late."""
    config = Config(backend=name, mask_policy="eager", max_batch_size=1)
    engine = Engine(ToyAdapter(), backend(name), NoSpeculation(), config)
    (output,) = engine.generate([REQUESTS[number]])
    return output


@dataclass
class Play(Schedule):
    """A schedule over a `LateTarget`, whose parts are looked at in the end.

    Attributes:
        entries: the books of every request that was seen running.
    """

    entries: dict[int, Entry] = field(default_factory=dict)

    def step(self) -> None:
        """Let the engine take a step."""
        super().step()
        for request_id, entry in self.engine._parts.ledger.entries.items():
            self.entries[self.in_flight[request_id]] = entry

    def check_nothing_is_left(self, device: DelayedDevice, target: LateTarget) -> None:
        """No cache, no books, no slot, no work, and no grammar that is not where its history is."""
        device.run_all()
        for work in target.works:
            work.value()
        assert not target.cache, "requests are left in the target's cache"
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
            assert session._followed is None, "native code moved the grammar ahead of the history"
            if session.cursor is not None and session.error is None:
                assert not session.cursor.num_steps, "the grammar has moves that are not settled"
                assert session._num_advanced == len(session.output), "the grammar is behind the history"


def mask_parts_of(engine: Engine) -> MaskParts:
    """What the engine masks with."""
    masking = engine._parts.masking
    one = masking._policies["eager"] if isinstance(masking, AutoMasking) else masking
    assert isinstance(one, EagerMasking | LazyMasking)
    return one.parts


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
        workers.__dict__["num_threads"] = lambda *_: 1 + choose(2)
    play = Play(engine, REQUESTS, partial(alone, name), choose)
    play.run()
    play.check_outputs()
    play.check_nothing_is_left(device, target)
    producer = engine.producer
    assert isinstance(producer, LateProducer)
    play.counts["late drafts"] = producer.num_late
    play.counts["stale drafts"] = engine.trace.num_stale_drafts
    play.counts["overlapped"] = engine.trace.num_overlapped_steps
    play.counts[algorithm] = play.counts[policy] = play.counts[name] = 1
    return play.counts
