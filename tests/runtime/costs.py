"""What a step of an engine costs, counted: no clock is read.

Counted are the bytecodes that the host runs, the bytes that it allocates, the tokens of a history that it looks
at, and the tokens that matchers move over. What native libraries do by themselves is not seen;
`benchmarks.soak` measures it.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from types import FrameType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.soak_target import ScriptedAdapter, ScriptedTarget
from specgrammar.config import Config
from specgrammar.protocols.grammar import (
    BackendFacts,
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarSpec,
    Vocabulary,
)
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.sampling import MaskPolicyChoice
from specgrammar.testing.toys import STOP, VOCABULARY
from tests.toys import backend

SPEC = GrammarSpec.regex("[abc12]*")
TEXT = (0, 3, 12, 4, 2, 13, 5, 0, 1, 14, 3, 2, 4, 12, 5, 13, 1)
"""What requests write, again and again: ids of tokens of letters and digits."""
ALGORITHM_OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"num_draft_tokens": 6, "min_match": 1, "capacity": 16},
}


class Counted(list[int]):
    """A history that counts the tokens that are read from it."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        for token in super().__iter__():
            self.num_read += 1
            yield token

    def __reversed__(self) -> Iterator[int]:
        for token in super().__reversed__():
            self.num_read += 1
            yield token

    def __eq__(self, other: object) -> bool:
        self.num_read += len(self)
        return super().__eq__(other)

    __hash__ = None

    def __contains__(self, token: object) -> bool:
        self.num_read += len(self)
        return super().__contains__(token)


@dataclass
class CountingMatcher:
    """Counts the tokens that its matcher moves over, in both directions, and its fills."""

    inner: GrammarMatcher
    backend: CountingBackend

    @property
    def finished(self) -> bool:
        return self.inner.finished

    def accept(self, token: int) -> bool:
        self.backend.num_moves += 1
        return self.inner.accept(token)

    def accept_prefix(self, tokens: Sequence[int]) -> int:
        self.backend.num_moves += len(tokens)
        return self.inner.accept_prefix(tokens)

    def rollback(self, num_tokens: int) -> None:
        self.backend.num_moves += num_tokens
        self.inner.rollback(num_tokens)

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        self.backend.num_moves += 1
        self.inner.fill_bitmask(bitmask, row)

    def fork(self) -> CountingMatcher:
        raise AssertionError("a step forks no matcher")


@dataclass
class CountingBackend:
    """Makes counting matchers, which have no abilities of their own."""

    inner: GrammarBackend
    num_moves: int = 0
    api_version: Literal[1] = field(default=1, init=False)

    @property
    def facts(self) -> BackendFacts:
        return self.inner.facts

    @property
    def vocabulary(self) -> Vocabulary:
        return self.inner.vocabulary

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        return self.inner.compile(spec)

    def matcher(self, compiled: Any) -> CountingMatcher:
        return CountingMatcher(self.inner.matcher(compiled), self)


@dataclass
class Bench:
    """An engine over a target that follows texts."""

    engine: Engine
    target: ScriptedTarget
    backend: GrammarBackend

    @classmethod
    def of(cls, name: str, algorithm: str, policy: MaskPolicyChoice, *, counting: bool = False) -> Bench:
        target = ScriptedTarget(VOCABULARY)
        grammars = CountingBackend(backend(name)) if counting else backend(name)
        drafts = create(ALGORITHMS, algorithm, **ALGORITHM_OPTIONS[algorithm])
        config = Config(name, algorithm=algorithm, mask_policy=policy, max_batch_size=2)
        return cls(Engine(ScriptedAdapter(target, VOCABULARY), grammars, drafts, config), target, grammars)

    def add(self, request_id: str, num_tokens: int) -> None:
        text = (TEXT * (num_tokens // len(TEXT) + 1))[:num_tokens]
        self.target.write(request_id, (*text, STOP))
        self.engine.add(Request(request_id, (0, 1), SPEC, max_new_tokens=num_tokens + 1, stop_strings=("{",)))

    def write_short(self, number: int) -> None:
        """A whole request of a few tokens."""
        self.add(f"request {number:04}", 4)
        outputs = []
        while self.engine.has_work:
            outputs += self.engine.step()
        assert [(len(output.token_ids), output.error) for output in outputs] == [(5, None)]

    def write_until(self, num_tokens: int) -> None:
        entries = self.engine._parts.ledger.entries
        while not entries or min(len(entry.session.output) for entry in entries.values()) < num_tokens:
            assert not self.engine.step()


@dataclass(frozen=True)
class Cost:
    """Of one step: the most of those looked at, but for bytes the median, since lists grow now and then."""

    num_bytecodes: int
    num_bytes: float
    num_read: int
    num_moves: int

    def check_flat(self, earlier: Cost) -> None:
        """Nothing has grown; n-grams that share a bucket and lists with room to spare make a little noise."""
        for name in ("num_moves", "num_read", "num_bytes", "num_bytecodes"):
            before, now = getattr(earlier, name), getattr(self, name)
            slack = 256 if name == "num_bytes" else 8
            assert now <= 1.01 * before + slack, f"{name} of a step grew from {before} to {now}"


@contextmanager
def bytecodes() -> Iterator[list[int]]:
    """Count the bytecodes of this thread in the first element of the list."""
    count = [0]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def cost_of(bench: Bench, step: Callable[[], object], num_steps: int) -> Cost:
    """Make `step` so many times, twice."""
    histories = []
    for entry in bench.engine._parts.ledger.entries.values():
        entry.tokens, entry.session.output = Counted(entry.tokens), Counted(entry.session.output)
        histories += [entry.tokens, entry.session.output]
    num_bytecodes, num_bytes, num_read, num_moves = [], [], [], []
    for _ in range(num_steps):
        before, moves = sum(history.num_read for history in histories), moves_of(bench)
        with bytecodes() as count:
            step()
        num_bytecodes.append(count[0])
        num_read.append(sum(history.num_read for history in histories) - before)
        num_moves.append(moves_of(bench) - moves)
    tracemalloc.start()
    try:
        for _ in range(num_steps):
            tracemalloc.reset_peak()
            held, _ = tracemalloc.get_traced_memory()
            step()
            num_bytes.append(tracemalloc.get_traced_memory()[1] - held)
    finally:
        tracemalloc.stop()
    return Cost(max(num_bytecodes), median(num_bytes), max(num_read), max(num_moves))


def moves_of(bench: Bench) -> int:
    return bench.backend.num_moves if isinstance(bench.backend, CountingBackend) else 0
