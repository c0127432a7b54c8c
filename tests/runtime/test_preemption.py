"""Requests that are preempted and resumed at any step write what they would have written undisturbed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.toy_target import toy_engine

ENDLESS = GrammarSpec.regex("([abc12]|: |, )*")
REQUESTS = [
    Request(str(n), (0, 1, 0, 1), grammar, SamplingParams(temperature=n % 2, seed=n), 12 + 5 * n)
    for n, grammar in enumerate((ENDLESS, GrammarSpec.regex("(ab){3,9}c"), None, ENDLESS))
]


def undisturbed(**config: Any) -> dict[str, tuple[int, ...]]:
    """Everybody's tokens."""
    engine, _ = toy_engine(**config)
    return {output.request_id: output.token_ids for output in engine.generate(REQUESTS)}


@given(st.data(), st.sampled_from(["none", "ngram", "chain"]), st.sampled_from(["eager", "lazy"]))
@settings(max_examples=60, deadline=None)
def test_preemption_changes_no_token(data: st.DataObject, algorithm: str, policy: str) -> None:
    """At each step somebody may be taken out or let in again; the cache is freed meanwhile."""
    config: dict[str, Any] = {"algorithm": algorithm, "mask_policy": policy, "max_batch_size": 3}
    engine, target = toy_engine(**config)
    for request in REQUESTS:
        engine.add(request)
    outputs: list[RequestOutput] = []
    while engine.has_work or engine._preempted:
        running, away = sorted(engine._running), sorted(set(engine._preempted) - set(engine._resuming))
        choice = data.draw(st.sampled_from(["step", "step", "preempt", "resume"]))
        if choice == "preempt" and running:
            request_id = data.draw(st.sampled_from(running))
            engine.preempt(request_id)
            assert request_id not in target.cache
        elif away and (choice == "resume" or not engine.has_work):
            engine.resume(data.draw(st.sampled_from(away)))
        else:
            outputs += engine.step()
    assert {output.request_id: output.token_ids for output in outputs} == undisturbed(**config)
    assert not target.cache


def test_a_preempted_request_can_be_aborted() -> None:
    engine, _ = toy_engine()
    engine.add(REQUESTS[3])
    for _ in range(4):
        engine.step()
    engine.preempt("3")
    assert not engine.has_work
    engine.resume("3")
    engine.abort("3")
    (output,) = engine.step()
    assert (output.finish_reason, len(output.token_ids)) == ("abort", 4)
    assert not engine.has_work


def test_an_id_is_free_again_once_its_request_was_aborted() -> None:
    """Not while it is preempted; and nothing of the old request's resumption is left for the new one."""
    engine, _ = toy_engine()
    engine.add(REQUESTS[3])
    engine.step()
    engine.preempt("3")
    (refused,) = engine.generate([REQUESTS[3]])
    assert "request id '3' is in flight already" in str(refused.error)
    engine.resume("3")
    engine.abort("3")
    engine.step()
    engine.add(REQUESTS[3])
    engine.step()
    engine.preempt("3")
    engine.resume("3")
    (output,) = engine.generate([])
    assert output.token_ids == undisturbed()["3"]


def test_a_request_that_cannot_be_placed_again_fails_alone() -> None:
    engine, target = toy_engine(max_batch_size=2)
    for request in REQUESTS[2:]:
        engine.add(request)
    for _ in range(3):
        engine.step()
    engine.preempt("3")
    add = target.add

    def full(*_: object) -> None:
        raise RuntimeError("out of memory")

    target.add = full  # type: ignore[method-assign,assignment]  # the planted fault
    engine.resume("3")
    outputs = {output.request_id: output for output in engine.generate([])}
    target.add = add  # type: ignore[method-assign]
    assert outputs["3"].finish_reason == "error"
    assert "out of memory" in str(outputs["3"].error)
    assert outputs["2"].token_ids == undisturbed()["2"]


def test_what_is_not_running_cannot_be_preempted() -> None:
    engine, _ = toy_engine()
    with pytest.raises(ConfigError, match="preempt: request 'x' is not running"):
        engine.preempt("x")
    with pytest.raises(ConfigError, match="resume: request 'x' is not preempted"):
        engine.resume("x")
