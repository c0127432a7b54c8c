"""The same run on several devices in turns, so that what drifts in a machine meets all of them alike.

The engines are in one process, on one copy of the weights. Each makes a few steps, waits until its device is
idle, and stands still while the others make theirs; its recording is written without these pauses. So the same
steps of two devices are moments apart, where whole runs would be seconds apart and whole processes minutes.

An idle device at each end of a turn is a cost that a run by itself does not have: it falls on the devices that
run ahead of the host, and long turns make it small.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from benchmarks.bfcl import Entry
from specgrammar.cli.recording import facts_behind, facts_of
from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.runtime.timeline import Timeline
from specgrammar.runtime.waiting import AgreeJoins
from specgrammar_transformers import TransformersAdapter

Texts = list[tuple[str, str]]
"""Request id and text, sorted."""


class Player:
    """One device's run, which can stand still between steps."""

    def __init__(self, adapter: TransformersAdapter, config: Config, entries: Sequence[Entry]) -> None:
        """Everything is added, nothing has run."""
        self._device = adapter.device
        self._engine = Engine.build(config, adapter, agree_joins=all_at_first(len(entries)))
        self._timeline = self._engine.trace.timeline = Timeline(facts_of(self._engine, adapter))
        self._pauses: list[tuple[float, float]] = []
        self._stopped: float | None = None
        self.texts: Texts = []
        for entry in entries:
            tokens, grammar = adapter.encode_prompt(entry.prompt), GrammarSpec.json_schema(entry.schema)
            self._engine.add(Request(entry.id, tuple(tokens), grammar, max_new_tokens=256))

    @property
    def has_work(self) -> bool:
        """Whether it is not through."""
        return self._engine.has_work

    def play(self, num_steps: int) -> None:
        """Make some steps and wait until the device is idle."""
        if self._stopped is not None:
            self._pauses.append((self._stopped, time.perf_counter()))
        end = self._engine.trace.num_steps + num_steps
        while self._engine.has_work and self._engine.trace.num_steps < end:
            self.texts += [(output.request_id, output.text) for output in self._engine.step()]
        self._device.record().wait()
        self._stopped = time.perf_counter()

    def recording(self, facts: Mapping[str, object]) -> Timeline:
        """What was done, the pauses left out; `facts` are added to the run's own."""
        recording = without(self._timeline, self._pauses)
        recording.facts |= {**facts, **facts_behind(self._engine)}
        return recording


def all_at_first(num_requests: int) -> AgreeJoins:
    """Let none join before all grammars are compiled, or the same step would not do the same work twice."""
    may_join = False

    def agree(ready: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal may_join
        may_join |= len(ready) == num_requests
        return ready if may_join else ()

    return agree


def without(timeline: Timeline, pauses: Sequence[tuple[float, float]]) -> Timeline:
    """A timeline whose clock stood still during `pauses`: sorted, disjoint, and in no span."""
    begins = [begin for begin, _ in pauses]
    before = [0.0, *accumulate(end - begin for begin, end in pauses)]

    def moved(moment: float) -> float:
        return moment - before[bisect_left(begins, moment)]

    spans = [span._replace(begin=moved(span.begin), end=moved(span.end)) for span in timeline.spans]
    return Timeline(
        dict(timeline.facts), spans, [moved(end) for end in timeline.step_ends], timeline.num_dropped
    )


def record(
    adapters: Mapping[str, TransformersAdapter],
    config: Config,
    entries: Sequence[Entry],
    num_repeats: int,
    steps_per_turn: int,
    facts: Mapping[str, object],
) -> tuple[dict[str, list[Timeline]], bool]:
    """Each device's recordings, by repeat, and whether all texts were equal.

    A repeat before the first warms up and is not kept.
    """
    recordings: dict[str, list[Timeline]] = {name: [] for name in adapters}
    texts: list[Texts] = []
    for repeat in range(num_repeats + 1):
        print(f"repeat {repeat} of {num_repeats} ...", file=sys.stderr)
        players = {name: Player(adapter, config, entries) for name, adapter in adapters.items()}
        order = list(players.values())
        while any(player.has_work for player in order):
            for player in order:
                player.play(steps_per_turn)
            order.reverse()  # who follows whom is nobody's advantage
        texts += [sorted(player.texts) for player in order]
        if repeat:
            for name, player in players.items():
                recordings[name].append(player.recording({**facts, "steps_per_turn": steps_per_turn}))
    return recordings, all(other == texts[0] for other in texts)
