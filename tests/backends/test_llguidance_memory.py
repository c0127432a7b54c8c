"""llguidance remembers its last mask, also behind a rollback: no row may be that of another place."""

from __future__ import annotations

import ctypes
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, GrammarCompileError, MatcherError
from specgrammar.native.library import why_no_core
from specgrammar.protocols.abilities import WalkCalls
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, Vocabulary
from specgrammar.testing.checks.calls_table import CallsTable
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_llguidance.backend import LLGuidanceCompiled
from specgrammar_llguidance.lark import HEADER
from specgrammar_llguidance.matcher import LLGuidanceMatcher
from tests.backends.grammars import grammars
from tests.backends.schemas import schemas

_CONFUSABLE = [
    'root ::= s "a"\ns ::= "a"+ | s "b"',
    'root ::= s "a"\ns ::= "a"+ | s "b" | s "1" "2"',
    'root ::= x+\nx ::= "a"+ | x "b" | "1" x "2" | "c"+',
    'root ::= ("a"+ "b"? | "ab" | "c")* "1"',
    'root ::= s "c"\ns ::= "a"+ "1"? | s "b"+ | s "ab"',
]
"""Siblings often end as many lexemes and leave the lexer in the same state, and go on differently."""
specs = st.one_of(
    st.sampled_from(_CONFUSABLE).map(GrammarSpec.grammar),
    grammars().map(GrammarSpec.grammar),
    schemas.map(lambda schema: GrammarSpec("json_schema", json.dumps(schema))),
    st.just(GrammarSpec("json_object")),
)
walks = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


CallsOver = Callable[[LLGuidanceMatcher, NDArray[np.int32]], WalkCalls]


def native_calls(matcher: LLGuidanceMatcher, bitmask: NDArray[np.int32]) -> WalkCalls:
    """Its table for native code as the calls of a walk."""
    native = matcher.native_calls()
    if native is None:
        pytest.skip(why_no_core())
    table = CallsTable.from_address(native.calls)

    def call(function: Callable[..., int], argument: int, expected: int = 0) -> None:
        assert function(*native[:2], argument) == expected
        ctypes.pythonapi.PyErr_Occurred.restype = ctypes.c_void_p
        assert ctypes.pythonapi.PyErr_Occurred() is None

    return WalkCalls(
        lambda token: call(table.accept, token, 1),
        lambda row: call(table.fill, bitmask[row].ctypes.data),
        lambda num_tokens: call(table.rollback, num_tokens),
    )


both_ways = pytest.mark.parametrize(
    "calls_over", [LLGuidanceMatcher.walk_calls, native_calls], ids=["python", "native"]
)


@pytest.fixture(scope="module")
def llguidance(backends: dict[str, GrammarBackend]) -> LLGuidanceBackend:
    backend = backends["llguidance"]
    assert isinstance(backend, LLGuidanceBackend)
    return backend


class Places:
    """What is legal at each place of a grammar, each asked of a matcher that has never filled another row."""

    def __init__(self, backend: LLGuidanceBackend, spec: GrammarSpec) -> None:
        try:
            self.compiled = backend.compile(spec)
        except GrammarCompileError:
            assume(False)
        self._backend = backend
        self._legal: dict[tuple[int, ...], list[int]] = {}

    def matcher(self) -> LLGuidanceMatcher:
        return self._backend.matcher(self.compiled)

    def legal(self, tokens: list[int]) -> list[int]:
        key = tuple(tokens)
        if key not in self._legal:
            fresh = self.matcher()
            assert fresh.accept_prefix(tokens) == len(tokens)
            self._legal[key] = legal(fresh, self._backend.vocabulary)
        return self._legal[key]


def legal(matcher: LLGuidanceMatcher, vocabulary: Vocabulary) -> list[int]:
    """The ids of the row here; none at a dead end and behind the end."""
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    try:
        matcher.fill_bitmask(bitmask, 0)
    except DeadEndError:
        assert not bitmask.any()
    return bits(bitmask)


def bits(row: NDArray[np.int32]) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return found


@walks
@given(spec=specs, data=st.data())
def test_rows_are_those_of_a_fresh_replay(
    llguidance: LLGuidanceBackend, spec: GrammarSpec, data: st.DataObject
) -> None:
    vocabulary, places = llguidance.vocabulary, Places(llguidance, spec)
    matcher, tokens = places.matcher(), list[int]()
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["accept", "accept", "prefix", "fill", "rollback", "fork", "refused"])):
            case "accept":
                if choices := places.legal(tokens):
                    tokens.append(data.draw(st.sampled_from(choices)))
                    assert matcher.accept(tokens[-1])
            case "prefix":  # some legal ones, then what may be illegal
                prefix = tokens.copy()
                for _ in range(data.draw(st.integers(0, 3))):
                    if choices := places.legal(prefix):
                        prefix.append(data.draw(st.sampled_from(choices)))
                offered = prefix[len(tokens) :]
                offered.append(
                    data.draw(st.sampled_from([i for i in range(60) if i not in places.legal(prefix)]))
                )
                assert matcher.accept_prefix(offered) == len(offered) - 1
                tokens = prefix
            case "refused":
                token = data.draw(st.integers(0, vocabulary.vocab_size - 1))
                if token not in places.legal(tokens):
                    assert not matcher.accept(token)
            case "rollback":
                num_tokens = data.draw(st.integers(0, len(tokens)))
                matcher.rollback(num_tokens)
                del tokens[len(tokens) - num_tokens :]
            case "fork":
                fork, matcher = matcher, matcher.fork()
                if data.draw(st.booleans()):
                    assert legal(fork, vocabulary) == places.legal(tokens)
            case _:
                assert legal(matcher, vocabulary) == places.legal(tokens)
    assert legal(matcher, vocabulary) == places.legal(tokens)


@both_ways
@walks
@given(spec=specs, data=st.data())
def test_walks_over_trees_and_steps_between_them(
    llguidance: LLGuidanceBackend, calls_over: CallsOver, spec: GrammarSpec, data: st.DataObject
) -> None:
    vocabulary, places = llguidance.vocabulary, Places(llguidance, spec)
    matcher, tokens = places.matcher(), list[int]()
    bitmask = np.zeros((2, vocabulary.num_words), np.int32)
    for _ in range(3):
        calls, root = calls_over(matcher, bitmask), len(tokens)
        for _ in range(data.draw(st.integers(0, 20))):
            calls.fill(1)
            choices = places.legal(tokens)
            assert bits(bitmask[1]) == choices
            choices = [token for token in choices if token not in vocabulary.stop_ids]
            if len(tokens) > root and (not choices or data.draw(st.booleans())):
                num_tokens = data.draw(st.integers(1, len(tokens) - root))
                calls.rollback(num_tokens)
                del tokens[-num_tokens:]
            elif choices:
                tokens.append(data.draw(st.sampled_from(choices)))
                calls.accept(tokens[-1])
        if len(tokens) > root:
            calls.rollback(len(tokens) - root)
            del tokens[root:]
        if choices := places.legal(tokens):
            tokens.append(data.draw(st.sampled_from(choices)))
            assert matcher.accept(tokens[-1])
        if matcher.finished:
            break


@both_ways
@pytest.mark.parametrize("source", _CONFUSABLE)
def test_siblings_that_look_alike(llguidance: LLGuidanceBackend, calls_over: CallsOver, source: str) -> None:
    """Bushy trees along random texts: without the fills before turns some rows of the first two are wrong."""
    vocabulary, places = llguidance.vocabulary, Places(llguidance, GrammarSpec.grammar(source))
    bitmask = np.zeros((1, vocabulary.num_words), np.int32)
    rng = random.Random(0)

    def visit(calls: WalkCalls, tokens: list[int], depth: int) -> None:
        calls.fill(0)
        assert bits(bitmask) == places.legal(tokens)
        choices = [token for token in places.legal(tokens) if token not in vocabulary.stop_ids]
        for token in rng.sample(choices, min(len(choices), 4)) if depth else ():
            calls.accept(token)
            visit(calls, [*tokens, token], depth - 1)
            calls.rollback(1)

    for _ in range(30):
        matcher, tokens = places.matcher(), list[int]()
        for _ in range(8):
            visit(calls_over(matcher, bitmask), tokens, 3)
            choices = [token for token in places.legal(tokens) if token not in vocabulary.stop_ids]
            if not choices:
                break
            tokens.append(rng.choice(choices))
            assert matcher.accept(tokens[-1])


def test_a_fork_knows_where_its_mask_is_from(llguidance: LLGuidanceBackend) -> None:
    vocabulary = llguidance.vocabulary
    a, b, ab = map(vocabulary.tokens.index, (b"a", b"b", b"ab"))
    matcher = Places(llguidance, GrammarSpec.grammar(_CONFUSABLE[0])).matcher()
    assert matcher.accept_prefix([a, a, a]) == 3
    assert ab in legal(matcher, vocabulary)
    matcher.rollback(1)
    for fork in (matcher.fork(), matcher):
        assert fork.accept_prefix([b]) == 1
        assert legal(fork, vocabulary) == [a, b]


class Counting:
    """A native matcher whose calls are counted."""

    def __init__(self, native: LLMatcher) -> None:
        self.native, self.calls = native, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.native, name)


@both_ways
def test_a_chain_is_neither_copied_nor_filled_twice(
    llguidance: LLGuidanceBackend, calls_over: CallsOver
) -> None:
    matcher = Places(llguidance, GrammarSpec("json_object")).matcher()
    native = matcher._state.native = Counting(matcher._state.native)  # type: ignore[assignment]  # it stands in for one
    calls = calls_over(matcher, np.zeros((8, llguidance.vocabulary.num_words), np.int32))
    tokens = [llguidance.vocabulary.tokens.index(text) for text in (b"{", b'"', b"a", b"b")]
    for _ in range(3):
        calls.fill(0)
        for row, token in enumerate(tokens, 1):
            calls.accept(token)
            calls.fill(row)
        calls.rollback(len(tokens))
    assert native.calls["deep_copy"] == 0
    assert native.calls["unsafe_compute_mask_ptr"] == 3 * (1 + len(tokens))


@both_ways
def test_siblings_cost_one_more_fill_each(llguidance: LLGuidanceBackend, calls_over: CallsOver) -> None:
    matcher = Places(llguidance, GrammarSpec("regex", "[abc]*")).matcher()
    native = matcher._state.native = Counting(matcher._state.native)  # type: ignore[assignment]  # it stands in for one
    calls = calls_over(matcher, np.zeros((4, llguidance.vocabulary.num_words), np.int32))
    a, b, c = (llguidance.vocabulary.tokens.index(text) for text in (b"a", b"b", b"c"))
    calls.accept(a)  # nothing was filled below: nothing to cure
    calls.rollback(1)
    calls.fill(0)
    for row, token in enumerate((a, b, c), 1):
        calls.accept(token)
        calls.fill(row)
        calls.rollback(1)
    assert native.calls["unsafe_compute_mask_ptr"] == 4 + 2
    assert native.calls["deep_copy"] == 0


@both_ways
def test_a_walk_goes_on_behind_a_dead_end(llguidance: LLGuidanceBackend, calls_over: CallsOver) -> None:
    """No token has a "z", so nothing is legal behind "ab"."""
    vocabulary = llguidance.vocabulary
    a, b = map(vocabulary.tokens.index, (b"a", b"b"))
    matcher = Places(llguidance, GrammarSpec("choice", json.dumps(["aabz", "aba", "ba"]))).matcher()
    assert matcher.accept(a)
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    calls = calls_over(matcher, bitmask)
    for _ in range(2):
        calls.accept(a)
        calls.accept(b)
        calls.fill(0)
        assert not bitmask.any()
        calls.rollback(2)
        calls.accept(b)
        calls.fill(0)
        assert bits(bitmask) == [a]
        calls.rollback(1)
    matcher.rollback(1)
    assert matcher.accept_prefix([b, a]) == 2
    assert legal(matcher, vocabulary) == list(vocabulary.stop_ids)


def test_a_limit_that_a_fill_hits_does_not_stop_the_matcher(llguidance: LLGuidanceBackend) -> None:
    spec = GrammarSpec("grammar", "start: x+\nx: /a/ | /b/ x /c/")
    limits = LLParserLimits(step_max_items=1)
    template = LLMatcher(llguidance._tokenizer, f"{HEADER}{spec.source}", log_level=0, limits=limits)
    matcher = llguidance.matcher(LLGuidanceCompiled(spec, (), template))
    vocabulary = llguidance.vocabulary
    a, b = map(vocabulary.tokens.index, (b"a", b"b"))
    bitmask = np.full((1, vocabulary.num_words), -1, np.int32)
    for token in (a, b, a):
        with pytest.raises(MatcherError, match="Too many items"):
            matcher.fill_bitmask(bitmask, 0)
        assert not bitmask.any()
        assert matcher.accept(token)
    matcher.rollback(2)
    assert matcher.accept(a)
