"""Joining: who waits for a grammar holds nobody up, whatever becomes of the grammar."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.waiting import AgreeJoins
from specgrammar.testing.toy_target import ToyAdapter, join_in_order, toy_engine
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar_llguidance import LLGuidanceBackend

QUICK = GrammarSpec.regex("(ab)+c")
SLOW = GrammarSpec.regex("(ab){2,9}c")
BAD = GrammarSpec.regex("a(")


class GatedBackend(LLGuidanceBackend):
    """The real backend, which compiles `SLOW` only once the gate is open, and notes what it compiled."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.gate = threading.Event()
        self.compiled: list[GrammarSpec] = []

    def compile(self, spec: GrammarSpec) -> Any:
        """Wait at the gate."""
        if spec == SLOW:
            assert self.gate.wait(60)
        self.compiled.append(spec)
        return super().compile(spec)


@pytest.fixture
def backend() -> Iterator[GatedBackend]:
    made = GatedBackend()
    yield made
    made.gate.set()


def engine_of(
    backend: GatedBackend, agree_joins: AgreeJoins = lambda numbers: numbers, **config: Any
) -> tuple[Engine, Any]:
    adapter = ToyAdapter()
    algorithm = create(ALGORITHMS, "none")
    return Engine(adapter, backend, algorithm, Config(**config), agree_joins=agree_joins), adapter.target


def request(name: str, spec: GrammarSpec | None, num_tokens: int = 9) -> Request:
    return Request(name, (0,), spec, max_new_tokens=num_tokens)


def steps_until(engine: Engine, num_outputs: int) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    for _ in range(2000):
        outputs += engine.step()
        if len(outputs) >= num_outputs:
            return outputs
    raise AssertionError(f"only {outputs}")


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_slow_grammar_holds_nobody_up(backend: GatedBackend, size: int) -> None:
    engine, _ = engine_of(backend, max_batch_size=size)
    for name, spec in (("slow", SLOW), ("quick", QUICK), ("free", None), ("bad", BAD)):
        engine.add(request(name, spec))
    outputs = {output.request_id: output for output in steps_until(engine, 3)}
    assert set(outputs) == {"quick", "free", "bad"}
    assert outputs["quick"].text.startswith("ab")
    assert outputs["bad"].finish_reason == "error"
    assert engine.has_work
    assert engine.step() == [], "it waits a short time and comes back"
    backend.gate.set()
    (slow,) = engine.generate([])
    assert (slow.request_id, slow.text[:4]) == ("slow", "abab")
    assert not engine.has_work


def test_one_that_is_compiled_meanwhile_joins_those_that_run(backend: GatedBackend) -> None:
    engine, target = engine_of(backend)
    engine.add(request("slow", SLOW))
    engine.add(request("free", None, num_tokens=1000))
    engine.step()
    assert set(target.cache) == {"free"}
    backend.gate.set()
    while "slow" not in target.cache:
        engine.step()
    assert set(target.cache) == {"free", "slow"}


def test_among_those_that_can_join_the_first_comes_first(backend: GatedBackend) -> None:
    engine, target = engine_of(backend, max_batch_size=1)
    backend.gate.set()
    order: list[str] = []
    add = target.add

    def noting(request_id: str, tokens: Any) -> None:
        order.append(request_id)
        add(request_id, tokens)

    target.add = noting
    specs = [SLOW, QUICK, None, SLOW, GrammarSpec.regex("[ab]*c")]
    for i, spec in enumerate(specs):
        engine.add(request(str(i), spec))
    for waiting in engine._waiting._waiting:
        if waiting.ticket is not None:
            waiting.ticket.result()
    steps_until(engine, len(specs))
    assert order == ["0", "1", "2", "3", "4"]
    assert sorted(map(repr, backend.compiled)) == sorted(map(repr, {*specs} - {None})), "once each"


def test_abort_while_the_grammar_is_compiled(backend: GatedBackend) -> None:
    engine, target = engine_of(backend)
    for name in ("a", "b"):
        engine.add(request(name, SLOW))
    engine.abort("a")
    (aborted,) = engine.step()
    assert (aborted.request_id, aborted.finish_reason, aborted.token_ids) == ("a", "abort", ())
    assert target.cache == {}
    engine.abort("nobody")
    backend.gate.set()
    (other,) = engine.generate([])
    assert (other.request_id, other.text[:4]) == ("b", "abab")
    assert backend.compiled == [SLOW]


def test_a_grammar_out_of_time_ends_its_request_with_the_reason(backend: GatedBackend) -> None:
    engine, _ = engine_of(backend, compile_timeout_s=0.05)
    outputs = {o.request_id: o for o in engine.generate([request("slow", SLOW), request("quick", QUICK)])}
    assert outputs["quick"].error is None
    assert outputs["slow"].finish_reason == "error"
    assert outputs["slow"].error is not None
    assert "regex: not compiled within 0.05 s (compile_timeout_s)" in outputs["slow"].error


def test_a_broken_grammar_is_one_failed_request_as_often_as_it_comes(backend: GatedBackend) -> None:
    engine, _ = engine_of(backend)
    outputs = list(engine.generate([request(str(i), BAD) for i in range(3)]))
    assert [output.finish_reason for output in outputs] == ["error"] * 3
    assert len({output.error for output in outputs}) == 1
    assert "not closed" in str(outputs[0].error)
    assert backend.compiled == [BAD]


@pytest.mark.parametrize("compile_cache_entries", [0, 1, 64])
def test_the_cache_is_as_large_as_configured(backend: GatedBackend, compile_cache_entries: int) -> None:
    engine, _ = engine_of(backend, compile_cache_entries=compile_cache_entries)
    for spec in (QUICK, GrammarSpec.regex("c+"), QUICK):
        (output,) = engine.generate([request("a", spec)])
        assert output.error is None
    assert len(backend.compiled) == (2 if compile_cache_entries == 64 else 3)


def test_replicas_join_alike_whatever_is_compiled_where(backend: GatedBackend) -> None:
    """The first decides; the second, whose grammars are all ready, joins what the first can join."""
    told: list[tuple[int, ...]] = []
    joined: list[list[set[str]]] = [[], []]

    def first(numbers: tuple[int, ...]) -> tuple[int, ...]:
        told.append(numbers)
        return numbers

    requests = [request("slow", SLOW), request("quick", QUICK), request("free", None)]
    engine, target = engine_of(backend, first)
    for each in requests:
        engine.add(each)
    for step in range(12):
        if step == 2:
            backend.gate.set()
            ticket = engine._waiting._waiting[0].ticket
            assert ticket is not None
            ticket.result()
        engine.step()
        joined[0].append(set(target.cache))
    replies = iter(told)
    quick = GatedBackend()
    quick.gate.set()
    replica, target = engine_of(quick, lambda _: next(replies))
    for each in requests:
        replica.add(each)
    for _ in range(12):
        replica.step()
        joined[1].append(set(target.cache))
    assert joined[0] == joined[1]
    assert joined[0][0] == {"quick", "free"}
    assert next(replies, None) is None


def test_a_replica_waits_for_what_was_agreed(backend: GatedBackend) -> None:
    engine, target = engine_of(backend, join_in_order)
    engine.add(request("slow", SLOW))
    threading.Timer(0.3, backend.gate.set).start()
    engine.step()
    assert set(target.cache) == {"slow"}


def test_a_matcher_that_cannot_be_made_is_one_failed_request(backend: GatedBackend) -> None:
    def failing(_: Any) -> Any:
        raise ValueError("no state")

    backend.matcher = failing  # type: ignore[method-assign, assignment]  # the planted fault
    engine, target = engine_of(backend)
    outputs = {o.request_id: o for o in engine.generate([request("a", QUICK), request("b", None)])}
    assert "no state" in str(outputs["a"].error)
    assert outputs["b"].error is None
    assert target.cache == {}


def test_what_may_hang_goes_through_a_child_and_into_the_batch() -> None:
    engine, _ = toy_engine(backend="xgrammar")
    source = 'root ::= "a" root | "bc"'
    (output,) = engine.generate([request("a", GrammarSpec.grammar(source), 40)])
    assert output.error is None
    assert output.token_ids[-1] == STOP or len(output.token_ids) == 40
