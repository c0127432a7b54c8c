"""`forced` and what it learns of the target's spelling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgrammar.errors import ConfigError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import Commit, DecodeBatch, RequestView
from specgrammar.runtime.request import Request
from specgrammar.spec.forced import ForcedAlgorithm, ForcedProducer
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.spelling import LearntSpelling
from specgrammar.testing.toy_target import toy_engine
from specgrammar.testing.toys import STOP, TEXTS, VOCABULARY
from tests.spec.drafting import context, host, paths
from tests.toys import BACKEND_NAMES, matcher

A, B, C, AB, ABC, BC = (TEXTS.index(text) for text in (b"a", b"b", b"c", b"ab", b"abc", b"bc"))


def producer(num_draft_tokens: int = 16) -> ForcedProducer:
    return ForcedAlgorithm(num_draft_tokens).make_producer(replace(context(), vocabulary=VOCABULARY))


def view(session: GrammarSession | None, *output: int, max_draft_tokens: int = 20) -> RequestView:
    return RequestView("r", [C, *output], 1, max_draft_tokens, SamplingParams(), grammar=session)


def session(regex: str, name: str = "xgrammar") -> GrammarSession:
    return GrammarSession(VOCABULARY, matcher(name, GrammarSpec.regex(regex)))


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_it_drafts_what_has_to_come_and_nothing_else(name: str) -> None:
    forced = producer()
    tree = forced.propose(DecodeBatch(3, (view(session("(ab){2}c(a|b)", name)),)))
    assert tree.step == 3
    assert host(tree).draft_tokens.tolist() == [C, AB, ABC], "ab, abc spells ababc; then there is a choice"
    assert paths(forced.propose(DecodeBatch(4, (view(session("a*", name)),))), 0) == [()]
    assert paths(forced.propose(DecodeBatch(5, (view(None),))), 0) == [()]


def test_no_more_drafts_than_the_request_needs_or_the_option_says() -> None:
    batch = DecodeBatch(0, (view(session("(ab){9}"), max_draft_tokens=2),))
    assert len(host(producer().propose(batch)).draft_tokens) == 3
    batch = DecodeBatch(0, (view(session("(ab){9}")),))
    assert len(host(producer(4).propose(batch)).draft_tokens) == 5
    with pytest.raises(ConfigError, match="forced: num_draft_tokens = 0"):
        ForcedAlgorithm(0)


def test_the_targets_spelling_is_taken_the_next_time() -> None:
    forced, one = producer(), session("(ab){2}c(a|b)")
    assert host(forced.propose(DecodeBatch(0, (view(one),)))).draft_tokens.tolist() == [C, AB, ABC]
    forced.observe([Commit("r", (A,), 2, 0, finished=False)])  # it says a, not ab
    assert forced.spelling.num_respelled == 1
    again = session("(ab){2}c(a|b)")
    tree = forced.propose(DecodeBatch(1, (view(again),)))
    assert host(tree).draft_tokens.tolist() == [C, A, B, ABC], "behind its own token the tokenizer's again"
    forced.observe([Commit("r", (AB, ABC), 3, 0, finished=False)])  # once only, it seems
    assert forced.spelling.num_respelled == 2
    tree = forced.propose(DecodeBatch(2, (view(session("(ab){2}c(a|b)")),)))
    assert host(tree).draft_tokens.tolist() == [C, AB, ABC]


def test_a_choice_of_another_text_is_no_spelling() -> None:
    spelling = LearntSpelling(VOCABULARY)
    run = spelling.draft((), C, b"abab", 8)
    chain = run.chain
    for committed in ((), (C,), (STOP,), tuple(chain), (*chain, C)):
        spelling.learn(run, committed)
    assert spelling.num_respelled == 0
    assert spelling.spell(C, b"abab", 8) == chain
    spelling.learn(run, (ABC,))  # says more than was forced when it was asked: the text went on
    assert spelling.num_respelled == 0


def test_a_token_that_says_more_than_was_forced_keeps_the_text() -> None:
    spelling = LearntSpelling(VOCABULARY)
    spelling.learn(spelling.draft((), A, b"b", 8), (BC,))
    assert spelling.num_respelled == 1
    assert spelling.spell(A, b"b", 8) == [B], "which is forced no longer than b"


def test_of_a_long_text_a_beginning_is_spelt() -> None:
    asked: list[int] = []

    def encode(text: str) -> list[int]:
        asked.append(len(text))
        return [A if character == "a" else B for character in text]

    spelling = LearntSpelling(replace(VOCABULARY, encode=encode))
    text = b"ab" * 50_000
    assert spelling.spell(B, text, 8) == [A, B] * 4
    spelling.learn(spelling.draft((), B, text, 8), (AB,))  # a habit: its way is tried first
    assert spelling.spell(B, text, 8)[0] == AB
    assert spelling.num_respelled == 1
    assert max(asked) < 300


@pytest.mark.parametrize("name", BACKEND_NAMES)
@pytest.mark.parametrize(
    "stops", [{}, {"stop_strings": ("bab",)}, {"max_new_tokens": 3}, {"stop_token_ids": (B,)}]
)
def test_runs_end_where_the_request_does(name: str, stops: dict[str, object]) -> None:
    outputs = []
    for algorithm in ("none", "forced", "forced+ngram"):
        engine, _ = toy_engine(backend=name, algorithm=algorithm)
        request = Request("r", (A, B), GrammarSpec.regex("(ab){6}c"), **{"max_new_tokens": 40, **stops})  # type: ignore[arg-type]
        (output,) = engine.generate([request])
        outputs.append((output.token_ids, output.text, output.finish_reason))
    assert outputs[0] == outputs[1] == outputs[2]
