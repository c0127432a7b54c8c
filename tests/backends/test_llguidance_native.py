"""llguidance's matchers moved by native code: what is rare, and what stays behind."""

from __future__ import annotations

import ctypes
import gc
import json
import signal
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.grammar.filling import fill_rows
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.native.library import why_no_core
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, NodeStatus, Vocabulary
from specgrammar.testing.checks.calls_table import CallsTable
from specgrammar.trees.tree import HostTree
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_llguidance.backend import LLGuidanceCompiled
from specgrammar_llguidance.lark import HEADER
from specgrammar_llguidance.matcher import LLGuidanceMatcher

pytestmark = pytest.mark.skipif(bool(why_no_core()), reason=f"no native code: {why_no_core()}")

DEAD_BELOW = GrammarSpec("choice", json.dumps(["aabz", "aba", "ba"]))
"""No token has a "z", so nothing is legal behind "aab"."""


@pytest.fixture(scope="module")
def llguidance(backends: dict[str, GrammarBackend]) -> LLGuidanceBackend:
    backend = backends["llguidance"]
    assert isinstance(backend, LLGuidanceBackend)
    return backend


class Native:
    """A matcher's functions for native code, which leave no Python error set."""

    def __init__(self, matcher: LLGuidanceMatcher) -> None:
        native = matcher.native_calls()
        assert native is not None
        self._matcher = matcher  # the addresses are valid as long
        self._native, self._table = native[:2], CallsTable.from_address(native.calls)
        self.row = np.full(self._table.num_words, -1, np.int32)

    def accept(self, token: int) -> int:
        return self._call(self._table.accept, token)

    def fill(self) -> int:
        return self._call(self._table.fill, self.row.ctypes.data)

    def rollback(self, num_tokens: int) -> int:
        return self._call(self._table.rollback, num_tokens)

    def legal(self) -> list[int]:
        assert self.fill() == 0
        return bits(self.row)

    def reason(self, size: int = 400) -> str:
        text = ctypes.create_string_buffer(b"\x7f" * size, size)
        self._table.reason(*self._native, ctypes.addressof(text), size)
        return text.value.decode()

    def _call(self, function: Callable[..., int], argument: int) -> int:
        result = function(*self._native, argument)
        ctypes.pythonapi.PyErr_Occurred.restype = ctypes.c_void_p
        assert ctypes.pythonapi.PyErr_Occurred() is None
        return result


def bits(row: NDArray[np.int32]) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found


def legal(matcher: LLGuidanceMatcher, vocabulary: Vocabulary) -> list[int]:
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    matcher.fill_bitmask(bitmask, 0)
    return bits(bitmask[0])


def matcher_of(backend: LLGuidanceBackend, spec: GrammarSpec) -> LLGuidanceMatcher:
    return backend.matcher(backend.compile(spec))


def limited(backend: LLGuidanceBackend) -> LLGuidanceMatcher:
    """Each of its fills hits a limit."""
    spec = GrammarSpec("grammar", "start: x+\nx: /a/ | /b/ x /c/")
    limits = LLParserLimits(step_max_items=1)
    template = LLMatcher(backend._tokenizer, f"{HEADER}{spec.source}", log_level=0, limits=limits)
    return backend.matcher(LLGuidanceCompiled(spec, (), template))


class StandIn:
    """A library's matcher with some methods replaced."""

    def __init__(self, native: LLMatcher, **methods: Callable[..., Any]) -> None:
        self._native, self._methods = native, methods

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._native, name)


def raise_planted(*_: object) -> Any:
    raise RuntimeError("planted " * 100)


def test_ids_that_are_no_text_are_refused(llguidance: LLGuidanceBackend) -> None:
    vocabulary = llguidance.vocabulary
    matcher = matcher_of(llguidance, GrammarSpec("regex", "[^b]*"))
    native, before = Native(matcher), legal(matcher, vocabulary)
    special = vocabulary.special_ids - set(vocabulary.stop_ids)
    assert special
    for token in (-1, vocabulary.vocab_size, 2**31 - 1, -(2**31), *special, vocabulary.tokens.index(b"b")):
        assert native.accept(token) == 0
    assert native.legal() == before == legal(matcher, vocabulary)


def test_a_dead_end_at_the_root_is_an_empty_row(llguidance: LLGuidanceBackend) -> None:
    matcher = matcher_of(llguidance, GrammarSpec("regex", "z"))
    native = Native(matcher)
    assert native.legal() == native.legal() == []
    with pytest.raises(DeadEndError):
        legal(matcher, llguidance.vocabulary)


def test_copies_fill_behind_a_dead_end_and_in_forks(llguidance: LLGuidanceBackend) -> None:
    vocabulary = llguidance.vocabulary
    a, b = map(vocabulary.tokens.index, (b"a", b"b"))
    matcher = matcher_of(llguidance, DEAD_BELOW)
    native = Native(matcher)
    assert [native.accept(token) for token in (a, a, b)] == [1, 1, 1]
    assert native.legal() == []
    assert matcher._state.by_copies
    assert native.rollback(2) == 0
    matcher.native_moved([a])
    fork = matcher.fork()
    for moved in (fork, matcher):
        native = Native(moved)
        assert native.accept(b) == 1
        assert native.legal() == [a]
        assert native.rollback(1) == 0
        assert native.accept(b) == 1
        moved.native_moved([b])
        assert moved.accept(a)
        assert legal(moved, vocabulary) == list(vocabulary.stop_ids)
        moved.rollback(3)
        assert legal(moved, vocabulary) == legal(matcher_of(llguidance, DEAD_BELOW), vocabulary)


def test_a_limit_fails_the_fill_and_not_the_matcher(llguidance: LLGuidanceBackend) -> None:
    a, b = map(llguidance.vocabulary.tokens.index, (b"a", b"b"))
    matcher = limited(llguidance)
    native = Native(matcher)
    for token in (a, b, a):
        assert native.fill() == -1
        assert native.reason().startswith("llguidance: parser error: Too many items")
        assert native.reason(8) == "llguida"
        assert native.accept(token) == 1
    matcher.native_moved([a, b, a])
    matcher.rollback(2)
    assert matcher.accept(a)
    assert matcher._state.tokens == [a, a]


def test_a_limit_that_an_accept_hits_takes_nothing_with_it(llguidance: LLGuidanceBackend) -> None:
    vocabulary = llguidance.vocabulary
    a, b = map(vocabulary.tokens.index, (b"a", b"b"))
    matcher = matcher_of(llguidance, DEAD_BELOW)
    assert matcher.accept(a)
    native = Native(matcher)
    assert native.accept(b) == 1
    state: Any = matcher._state
    state.native = StandIn(
        state.native, try_consume_tokens=lambda _: 0, is_error=lambda: True, get_error=lambda: "too deep"
    )
    assert native.accept(a) == -1
    assert native.reason() == "llguidance: too deep"
    assert isinstance(state.native, LLMatcher), "it was made again"
    assert native.legal() == [a]
    state.native = StandIn(state.native, rollback=lambda _: False)
    assert native.rollback(1) == 0
    assert isinstance(state.native, LLMatcher), "it was made again"
    assert native.accept(a) == 1
    assert native.accept(b) == 1
    assert native.legal() == []


@pytest.mark.parametrize("method", ["try_consume_tokens", "unsafe_compute_mask_ptr", "is_error", "rollback"])
def test_what_raises_is_the_reason(llguidance: LLGuidanceBackend, method: str) -> None:
    a = llguidance.vocabulary.tokens.index(b"a")
    matcher = matcher_of(llguidance, GrammarSpec("regex", "a{3}"))
    state: Any = matcher._state
    real, native = state.native, Native(matcher)
    assert native.accept(a) == 1
    state.native = StandIn(real, **{method: raise_planted})
    if method == "try_consume_tokens":
        assert native.accept(a) == -1
    elif method == "rollback":
        assert native.rollback(1) == -1
    else:
        assert native.fill() == -1
    assert native.reason() == ("planted " * 100)[:399]
    assert state.tokens == ([] if method == "rollback" else [a])
    state.native = real
    assert native.legal() == [a]
    assert native.accept(a) == 1


def test_a_key_that_interrupts_is_heard_of_behind_the_walk(llguidance: LLGuidanceBackend) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    matcher = matcher_of(llguidance, GrammarSpec("regex", "a*"))
    state: Any = matcher._state
    state.native = StandIn(state.native, is_error=interrupt)
    native = matcher.native_calls()
    assert native is not None
    table, row = CallsTable.from_address(native.calls), np.zeros(llguidance.vocabulary.num_words, np.int32)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            table.fill(*native[:2], row.ctypes.data)
            for _ in range(1000):
                pass
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_matcher_goes_with_its_last_reference(llguidance: LLGuidanceBackend) -> None:
    matcher = matcher_of(llguidance, GrammarSpec("regex", "a*"))
    state: Any = matcher._state
    state.native = StandIn(state.native)
    gone = weakref.ref(matcher), weakref.ref(state.native)
    assert Native(matcher).accept(llguidance.vocabulary.tokens.index(b"a")) == 1
    del state
    gc.disable()
    try:
        del matcher
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


class Walks(NamedTuple):
    """A batch of equal trees: behind a root "aab", "ab" and "b"."""

    sessions: list[GrammarSession]
    tree: HostTree
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, matchers: list[LLGuidanceMatcher], vocabulary: Vocabulary) -> Walks:
        a, b = map(vocabulary.tokens.index, (b"a", b"b"))
        parents, tokens = [-1, 0, 1, 2, 1, 0], [a, a, a, b, b, b]
        size = len(matchers)
        tree = HostTree.from_parents(
            np.arange(size + 1) * len(parents), np.tile(tokens, size), np.tile(parents, size)
        )
        rows = np.zeros((size * len(parents), vocabulary.num_words), np.int32)
        return cls([GrammarSession(vocabulary, matcher) for matcher in matchers], tree, rows)

    def walk(self, workers: FillWorkers | None = None) -> tuple[list[int], list[list[int]]]:
        """Statuses and dense rows, by node."""
        self.rows[:] = -1
        rows = MaskRows(self.rows, len(self.rows), None)
        fill_rows(self.sessions, self.tree, rows, workers)
        return rows.status.tolist(), self.rows.tolist()


class BothThreads(FillWorkers):
    """Two threads, always."""

    def __init__(self) -> None:
        super().__init__(2)

    def num_threads(self, *_: Any, **__: Any) -> int:
        return self.max_threads


SPECS = [DEAD_BELOW, *(GrammarSpec("regex", regex) for regex in ("[ab]*", "(a|b)ab?", "z", "(aa|b)[0-9]{2,9}"))]


def test_threads_that_python_does_not_know(llguidance: LLGuidanceBackend) -> None:
    def batch() -> Walks:
        return Walks.of(
            [matcher_of(llguidance, spec) for spec in SPECS for _ in range(10)], llguidance.vocabulary
        )

    one, two, workers = batch(), batch(), BothThreads()
    assert workers.max_threads == 2
    for _ in range(20):
        assert one.walk() == two.walk(workers)
    statuses = one.walk()[0]
    assert {NodeStatus.LIVE, NodeStatus.ENDED, NodeStatus.REJECTED, NodeStatus.PADDING} == set(statuses)
    errors = [type(session.error) for session in two.sessions]
    assert errors == [DeadEndError if spec.source == "z" else type(None) for spec in SPECS for _ in range(10)]


def test_a_limit_ends_its_own_request(llguidance: LLGuidanceBackend) -> None:
    walks = Walks.of([limited(llguidance), matcher_of(llguidance, SPECS[1])], llguidance.vocabulary)
    statuses, _ = walks.walk()
    assert statuses == [NodeStatus.PADDING] * 6 + [NodeStatus.LIVE] * 6
    assert isinstance(walks.sessions[0].error, MatcherError)
    assert "Too many items" in str(walks.sessions[0].error)
    assert walks.sessions[1].error is None


def test_walks_leave_nothing_behind(llguidance: LLGuidanceBackend) -> None:
    """Neither where all goes well nor where fills fail."""
    matchers = [matcher_of(llguidance, spec) for spec in SPECS[:3]]
    walks, alone = Walks.of(matchers, llguidance.vocabulary), Native(limited(llguidance))

    def many(num_walks: int) -> tuple[int, ...]:
        for _ in range(num_walks):
            walks.walk()
            assert alone.fill() == -1
        gc.collect()
        values = (None, True, False, 0, llguidance.vocabulary.tokens.index(b"a"))
        return (sys.getallocatedblocks(), *map(sys.getrefcount, values))

    before, after = many(300), many(10_000)
    assert max(now - then for now, then in zip(after, before, strict=True)) < 500
