"""Schedules: what users and a stream do to an engine, and what has to come out whatever they do.

A schedule is drawn number by number from a `Choose`. Requests are added at any step, under ids that others had
before, refused by a cache that is full, aborted, preempted and resumed; on a `DelayedDevice` forwards, copies
and drafts run late. Every request's output must be that of the request alone, decoded token by token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import numpy as np
from hypothesis import strategies as st

from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.testing.checks.base import expect
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_target import OUT_OF_MEMORY
from specgrammar.testing.toys import texts_of

Choose = Callable[[int], int]
"""A number in [0, n); who makes the schedule decides which. 0 is the plainest: nothing special is done."""


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


class Listed:
    """Numbers of a list, as far as they go, and zeros behind its end: the plainest choice of each.

    Attributes:
        numbers: the list.
        chosen: all that were drawn: the schedule.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        """Numbers that are not negative, each taken modulo how many there are to choose from."""
        self.chosen: list[int] = []
        self.numbers = numbers

    def __repr__(self) -> str:
        return f"Listed({list(self.numbers)})"

    def __call__(self, n: int) -> int:
        """A number in [0, n)."""
        place = len(self.chosen)
        self.chosen.append(self.numbers[place] % n if place < len(self.numbers) else 0)
        return self.chosen[-1]


@st.composite
def listed_schedules(draw: st.DrawFn, max_size: int = 400) -> Listed:
    """Schedules for property tests: they shrink to few choices, behind which all is plain.

    Args:
        draw: given by hypothesis.
        max_size: how many of the choices may be other than 0.
    """
    least = draw(
        st.sampled_from([size for size in (0, 8, 40, 200) if size <= max_size])
    )  # lists are short, else
    return Listed(draw(st.lists(st.integers(0, 2**16 - 1), min_size=least, max_size=max_size)))


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


@dataclass
class Schedule:
    """One engine and what is done to it.

    Attributes:
        engine: of any parts.
        pool: requests to draw from; their ids are not used.
        alone: what a request of the pool comes to by itself.
        choose: draws what is done.
        most_requests: most requests that are added.
        tell: is told what is done.
        show: tokens for people.
        numbers: of the pool, of each request in the order in which they were added.
        in_flight: the request that has an id now; ids are used again as soon as they are free.
        aborted: requests.
        outputs: by request.
        counts: how often what was done.
    """

    engine: Engine
    pool: Sequence[Request]
    alone: Callable[[int], RequestOutput]
    choose: Choose
    most_requests: int = 5
    tell: Callable[[str], None] = lambda _: None
    show: Callable[[Sequence[int]], str] = texts_of
    numbers: list[int] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        """Do things until all is done."""
        num_requests = 1 + self.choose(self.most_requests)
        for _ in range(1 + self.choose(num_requests)):
            self._add()
        while self.engine.has_work or self.engine._preempted or len(self.numbers) < num_requests:
            operation = self.choose(14)
            away = sorted(set(self.engine._preempted) - set(self.engine._resuming))
            if len(self.numbers) < num_requests and (operation > 11 or not self.engine.has_work):
                self._add()
            elif away and (operation in (10, 11) or not self.engine.has_work):
                self._resume(self._one_of(away))
            elif operation == 9 and self.engine._running:
                self._preempt(self._one_of(sorted(self.engine._running)))
            elif operation == 8 and self.choose(2):
                self._abort(self._one_of([*sorted(self.in_flight), "nobody"]))
            else:
                self.step()

    def _one_of(self, ids: list[str]) -> str:
        return ids[self.choose(len(ids))]

    def _add(self) -> None:
        request_id = next(name for name in map(str, count()) if name not in self.in_flight)
        self.in_flight[request_id] = len(self.numbers)
        self.numbers.append(self.choose(len(self.pool)))
        request = self.pool[self.numbers[-1]]
        self.tell(f"add {request_id!r}: {told_request(request, self.show)}")
        self.engine.add(replace(request, request_id=request_id))

    def _preempt(self, request_id: str) -> None:
        self.tell(f"preempt {request_id!r}")
        self.engine.preempt(request_id)
        self.counts["preempted"] += request_id in self.engine._preempted

    def _resume(self, request_id: str) -> None:
        self.tell(f"resume {request_id!r}")
        self.engine.resume(request_id)
        self.counts["resumed"] += 1

    def _abort(self, request_id: str) -> None:
        self.tell(f"abort {request_id!r}")
        self.counts["aborted while away"] += request_id in self.engine._preempted
        self.engine.abort(request_id)
        if request_id in self.in_flight:
            self.counts["aborted"] += 1
            self.aborted.add(self.in_flight[request_id])

    def step(self) -> None:
        """Let the engine take a step."""
        self.tell("step")
        before = set(self.engine._running)
        for output in self.engine.step():
            expect(output.request_id in self.in_flight, f"request {output.request_id!r} ended twice")
            self.outputs[self.in_flight.pop(output.request_id)] = output
        joined = set(self.engine._running) - before
        self.counts["steps"] += 1
        self.counts["mixed"] += bool(joined and before & set(self.engine._running))
        self.counts["together"] += len(self.engine._running) > 1

    def check_outputs(self) -> None:
        """Every request came out once, with what it comes to alone; one that was cut short with a beginning."""
        expect(len(self.outputs) == len(self.numbers), "a request is missing")
        for request, output in self.outputs.items():
            expected = self.alone(self.numbers[request])
            is_refused = OUT_OF_MEMORY in (output.error or "")
            if output.finish_reason == "abort" or is_refused:
                expect(is_refused or request in self.aborted, "ended as aborted, which it was not")
                self.counts["refused"] += is_refused
                found, whole = self.show(output.token_ids), self.show(expected.token_ids)
                is_beginning = output.token_ids == expected.token_ids[: len(output.token_ids)]
                expect(is_beginning, f"{found} was aborted and is not a beginning of its tokens alone, {whole}")
                continue
            check_alike(output, expected, self.show)


def check_alike(
    found: RequestOutput, expected: RequestOutput, show: Callable[[Sequence[int]], str] = texts_of
) -> None:
    """Raise unless two outputs are the same but for the words of an error.

    A dead end behind accepted drafts is told in other words than one at a root.
    """
    expect(
        told_output(found) == told_output(expected),
        f"request {found.request_id!r} has another output than alone, decoded token by token: "
        f"{show(found.token_ids)}, {_ending(found)}; expected {show(expected.token_ids)}, {_ending(expected)}",
    )
    ours, theirs = found.logprobs, expected.logprobs
    expect((ours is None) == (theirs is None), "logprobs are there where nobody asked, or the other way round")
    if ours is not None and theirs is not None:
        are_close = np.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        expect(are_close, f"request {found.request_id!r} has logprobs {ours}; expected {theirs}")


def told_output(output: RequestOutput) -> tuple[object, ...]:
    """What of an output does not depend on how it came to be."""
    return output.token_ids, output.text, output.finish_reason, output.grammar_engaged


def told_request(request: Request, show: Callable[[Sequence[int]], str] = texts_of) -> str:
    """A request for people."""
    prompt = request.prompt_tokens
    parts = [f"prompt {show(prompt)}" if len(prompt) < 30 else f"prompt of {len(prompt)} tokens"]
    if request.grammar is not None:
        parts.append(f"{request.grammar.kind} {request.grammar.source}")
    if start := request.grammar_start:
        parts.append(f"grammar from behind {show(start) if isinstance(start, tuple) else start}")
    if not request.sampling.greedy:
        parts.append(f"temperature {request.sampling.temperature:g}, seed {request.sampling.seed}")
    if request.stop_strings:
        parts.append(f"stop strings {list(request.stop_strings)}")
    if request.stop_token_ids:
        parts.append(f"stop ids {list(request.stop_token_ids)}")
    return ", ".join([*parts, f"at most {request.max_new_tokens} tokens"])


def _ending(output: RequestOutput) -> str:
    engaged = "grammar engaged" if output.grammar_engaged else "grammar not engaged"
    return f"{output.finish_reason}, {engaged}{': ' + output.error if output.error else ''}"
