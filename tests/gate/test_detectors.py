"""Detectors of users: what they are held to, and whom their failures end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.errors import ConfigError, RequestError
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.gate import GrammarGate
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toy_target import ToyAdapter, toy_engine
from specgrammar.testing.toys import GRAMMARS, SPECIAL, STOP, VOCABULARY
from tests.gate.detectors import BlockGate, SpelledGate, TextGate, begin_of
from tests.toys import BACKEND_NAMES, matcher


@pytest.mark.parametrize("gate", [TextGate(b"abc"), BlockGate(6, 7), SpelledGate(b"ab1")])
@given(
    st.lists(st.integers(0, 15), max_size=3), st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 7, 12]), max_size=14)
)
def test_the_detectors_of_these_tests_mean_what_is_said_of_them(
    gate: GrammarGate, prompt: list[int], output: list[int]
) -> None:
    state: Any = gate.start(prompt)
    for end, token in enumerate(output, 1):
        state = gate.step(state, token)
        begin = begin_of(gate, prompt, output[:end])
        assert gate.is_open(state) == (begin is not None)
        if begin is not None:
            assert getattr(gate, "carried", lambda _: ())(state) == tuple(output[begin:end])
            return


@dataclass(frozen=True)
class Failing:
    """A detector that opens at the second token and does one thing wrong."""

    fault: str
    starts: Any = ((0,),)

    def start(self, _prompt_tokens: Sequence[int]) -> Any:
        return self._wrong("start", 0)

    def step(self, state: int, _token: int) -> Any:
        return self._wrong("step", state + 1)

    def is_open(self, state: int) -> Any:
        return self._wrong("is_open", state == 2)

    def carried(self, _state: int) -> Any:
        return self._wrong("carried", ())

    def _wrong(self, member: str, right: Any) -> Any:
        wrong: dict[str, Callable[[], Any]] = {
            f"{member} raises": lambda: dict[str, int]()["planted"],
            f"{member} is a list": lambda: [right],
            f"{member} is no bool": lambda: int(right),
            f"{member} is undeclared": lambda: (1,),
            f"{member} is text": lambda: "ab",
        }
        return wrong.get(self.fault, lambda: right)()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("start raises", r"the gate Failing.start raised KeyError: 'planted'"),
        ("step raises", r"the gate Failing.step raised KeyError: 'planted'"),
        ("is_open raises", r"the gate Failing.is_open raised KeyError: 'planted'"),
        ("carried raises", r"the gate Failing.carried raised KeyError: 'planted'"),
        ("start is a list", r"Failing.start returned \[0\], which can change; a state is a value"),
        ("step is a list", r"Failing.step returned \[1\], which can change; a state is a value"),
        ("is_open is no bool", r"Failing.is_open returned 0; expected True or False"),
        ("carried is undeclared", r"Failing.carried returned \(1,\), which is not among its starts"),
        (
            "carried is text",
            r"Failing.carried raised ConfigError: carried = 'ab'; expected a sequence of token",
        ),
    ],
)
@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize("algorithm", ["none", "ngram"])
def test_a_detector_that_fails_ends_its_own_request_with_the_reason(
    fault: str, words: str, policy: str, algorithm: str
) -> None:
    good = Request("good", (0, 1, 0, 1), GRAMMARS[3], max_new_tokens=12)
    bad = Request("bad", (0, 1, 0, 1), GRAMMARS[0], max_new_tokens=12, grammar_start=Failing(fault))
    (alone,) = toy_engine(backend="llguidance")[0].generate([good])
    engine, _ = toy_engine(algorithm=algorithm, mask_policy=policy, max_batch_size=2)
    outputs = {output.request_id: output for output in engine.generate([bad, good])}
    assert outputs["good"].token_ids == alone.token_ids
    assert (outputs["bad"].finish_reason, outputs["bad"].grammar_engaged in (False, None)) == ("error", True)
    assert re.search(words, str(outputs["bad"].error))
    assert len(outputs["bad"].token_ids) <= 2, "nothing behind the failure"


@pytest.mark.parametrize("starts", [3, [[-1]], ["ab"], None])
def test_starts_that_are_none_are_refused(starts: Any) -> None:
    gate = Failing("", starts)
    with pytest.raises(RequestError, match=r"the gate Failing.starts raised"):
        GrammarSession(VOCABULARY, matcher("xgrammar", GRAMMARS[0]), gate=gate)


@pytest.mark.parametrize("name", BACKEND_NAMES)
@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (
            Markers(at=((0, 1), (0, 2))),
            r"implicit marker \[0, 2\]: it refuses token id 2 \('c'\) at position 1 of it",
        ),
        (
            Markers(after=((2,),), at=((1,),)),
            r"implicit marker \[1\]: it refuses token id 1 \('b'\) at position 0",
        ),
        (Markers(at=((SPECIAL,),)), rf"implicit marker \[{SPECIAL}\]: it refuses token id {SPECIAL} \(''\)"),
        (SpelledGate(b"aa"), r"implicit marker \[0, 0\]: it refuses token id 0 \('a'\) at position 1"),
        (
            Markers(at=((0, STOP),)),
            rf"would never begin: token id {STOP} of its marker \[0, {STOP}\] is a stop token",
        ),
        (Failing("", ((0, 99),)), r"would never begin: token id 99 .* outside the vocabulary \[0, 19\)"),
    ],
)
def test_an_implicit_start_that_the_grammar_does_not_begin_with_is_refused_at_admission(
    name: str, gate: GrammarGate, words: str
) -> None:
    """And never goes on unconstrained; the reason names marker and grammar."""
    engine, target = toy_engine(backend=name)
    request = Request("a", (0, 1), GRAMMARS[0], max_new_tokens=9, grammar_start=gate)
    (output,) = engine.generate([request])
    assert (output.token_ids, output.finish_reason, output.grammar_engaged) == ((), "error", None)
    assert re.search(rf"grammar_start: .*{words}.*\(with the regex '\(ab\)\+c'\)", str(output.error))
    assert target.num_forwards == 0
    with pytest.raises(ConfigError, match=words):
        GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=gate)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_trying_the_starts_leaves_the_grammar_at_its_start(name: str) -> None:
    gate = Markers(at=((0, 1), (3, 2), (3, 3, 0)))
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=gate)
    assert session.commit([5, 3, 2]) == 3
    assert (session.engaged, session.error) == (True, None)
    assert session.validate([STOP]) == 1, "abc, and nothing twice"


def test_a_backend_that_cannot_undo_as_much_as_a_gate_carries_is_refused() -> None:
    class Bounded(ReferenceBackend):
        facts = replace(ReferenceBackend.facts, max_rollback=5)

    engine = Engine(
        ToyAdapter(), Bounded(VOCABULARY), ChainAlgorithm(num_draft_tokens=3), Config(mask_policy="eager")
    )
    requests = [
        Request(str(len(marker)), (0, 1), GRAMMARS[0], max_new_tokens=5, grammar_start=Markers(at=(marker,)))
        for marker in ((0, 1), (0, 1, 0))
    ]
    outputs = {output.request_id: output for output in engine.generate(requests)}
    assert outputs["2"].error is None
    assert "can undo 5 tokens, but an implicit marker of 3 before 3 drafts needs 6" in str(outputs["3"].error)


def test_a_matcher_that_takes_a_start_only_once_is_refused_where_it_matters() -> None:
    """Its fresh state took the marker; its later one does not: the request ends, it does not go on free."""
    real = matcher("llguidance", GRAMMARS[0])

    class Forgetful:
        calls = 0

        def accept_prefix(self, tokens: Sequence[int]) -> int:
            Forgetful.calls += 1
            return real.accept_prefix(tokens if Forgetful.calls == 1 else tokens[:1])

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    forgetful: Any = Forgetful()
    session = GrammarSession(VOCABULARY, forgetful, gate=Markers(at=((0, 1),)))
    assert session.commit([0, 1]) == 2
    assert (session.finish, session.engaged) == ("error", False)
    assert "refuses [0, 1] where its grammar begins; it took them before" in str(session.error)


def test_a_prompt_may_start_the_grammar_in_its_middle() -> None:
    """A detector whose state behind the prompt is open and carries something: a prefilled answer."""

    class Prefilled:
        starts = ((0, 1),)

        def start(self, prompt_tokens: Sequence[int]) -> tuple[int, ...]:
            return tuple(prompt_tokens[-2:])

        def step(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
            raise AssertionError((state, token))

        def is_open(self, _state: tuple[int, ...]) -> bool:
            return True

        def carried(self, state: tuple[int, ...]) -> tuple[int, ...]:
            return state

    for name in BACKEND_NAMES:
        session = GrammarSession(
            VOCABULARY, matcher(name, GrammarSpec.regex("abc")), gate=Prefilled(), prompt_tokens=[9, 0, 1]
        )
        session.commit([2, STOP])
        assert (session.finish, session.engaged, session.error) == ("stop", True, None)
