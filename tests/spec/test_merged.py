"""`merged`: several sources in one trie, what each kind of draft is worth, and how many are verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import Commit, DecodeBatch, RequestView
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.request import Request
from specgrammar.spec.merged.acceptance import Acceptance
from specgrammar.spec.merged.algorithm import MergedAlgorithm
from specgrammar.spec.merged.budget import NodeBudget
from specgrammar.spec.merged.producer import MergedProducer
from specgrammar.spec.merged.trie import DraftTrie, Origin
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.step_costs import StepCosts
from specgrammar.testing.toy_target import toy_engine
from specgrammar.testing.toys import TEXTS, VOCABULARY
from tests.spec.drafting import context, paths
from tests.toys import matcher

A, B, C, AB, ONE, TWO = (TEXTS.index(text) for text in (b"a", b"b", b"c", b"ab", b"1", b"2"))
FORCED, LOOKUP = Origin(0, 0), Origin(1, 0)


def test_equal_drafts_are_one_node_of_the_better_source() -> None:
    trie = DraftTrie(C)
    first = trie.add(0, A, 0.5, LOOKUP)
    assert trie.add(0, A, 0.25, FORCED) == first
    assert (trie.chances[first], trie.origins[first]) == (0.5, LOOKUP)
    assert trie.add(0, A, 0.75, FORCED) == first
    assert (trie.chances[first], trie.origins[first]) == (0.75, FORCED)
    below = trie.add(first, B, 0.5, LOOKUP)
    other = trie.add(0, B, 0.1, LOOKUP)
    assert trie.chances[below] == 0.375
    assert (trie.path(below), trie.depth(below), trie.path(0)) == ([A, B], 2, [])
    assert (trie.leaves(), trie.likeliest_leaf()) == ([below, other], below)
    kept = trie.kept([first, below])
    assert (kept.tokens, kept.parents, kept.chances) == ([C, A, B], [-1, 0, 1], [1.0, 0.75, 0.375])


def test_a_rate_is_what_was_taken_of_what_could_be() -> None:
    acceptance, trie = Acceptance(), DraftTrie(C)
    a = trie.add(0, A, 0.5, FORCED)
    trie.add(0, B, 0.5, LOOKUP)
    trie.add(a, B, 0.5, LOOKUP)
    guess = acceptance.rate(LOOKUP)
    for _ in range(300):
        acceptance.learn(trie, (A, C))
    assert acceptance.rate(FORCED) > 0.98
    assert acceptance.rate(LOOKUP) < 0.02 < guess, "neither b was taken: not beside a, and not behind it"
    acceptance, trie = Acceptance(), DraftTrie(C)
    trie.add(trie.add(0, A, 0.5, FORCED), B, 0.5, LOOKUP)
    acceptance.learn(trie, (C,))
    assert acceptance.rate(LOOKUP) == guess, "nothing is known of what was never reached"
    assert acceptance.rate(FORCED) < guess


def test_a_rate_follows_what_the_requests_are_like() -> None:
    acceptance, trie = Acceptance(), DraftTrie(C)
    trie.add(0, A, 0.5, FORCED)
    for _ in range(5_000):
        acceptance.learn(trie, (A,))
    for _ in range(2_000):
        acceptance.learn(trie, (B,))
    assert acceptance.rate(FORCED) < 0.05


def test_costs_are_medians_joined_by_lines_that_never_fall() -> None:
    costs = StepCosts()
    for size, seconds in ((1, 3.0), (1, 1.0), (1, 1.0), (5, 2.0), (7, 1.5)):
        costs.add(size, seconds)
    expected = [1.0, 1.0, 1.1875, 1.375, 1.5625, 1.75, 1.75, 1.75, 1.875, 2.0]  # 5 and 7 are one: 7 cost less
    assert costs.curve(9) == pytest.approx(expected)


class Clock:
    """A step of n nodes takes `fixed + each * n` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fixed: float, each: float) -> None:
        self.now, self.fixed, self.each, self.generation = 0.0, fixed, each, 0
        monkeypatch.setattr("specgrammar.spec.step_costs.time.perf_counter", lambda: self.now)

    def step(self, budget: NodeBudget, chances: Sequence[float], bs: int = 1) -> int:
        budget.begin([f"{name}{self.generation}" for name in range(bs)])
        number = budget.choose(chances, bs)
        self.now += self.fixed + self.each * (bs + number)
        return number


@pytest.mark.parametrize(
    "fixed, each, expected",
    [
        (1.0, 0.0, 8),  # nodes are free
        (0.0, 1.0, 0),  # a step costs what its nodes do: a draft that may fail never pays
        (1.0, 0.25, 3),  # (1 + .9 + .8 + .7) / (1 + .25 * 4) is the best of all
    ],
)
def test_as_many_nodes_as_pay(
    monkeypatch: pytest.MonkeyPatch, fixed: float, each: float, expected: int
) -> None:
    chances = [0.9, 0.8, 0.7, 0.4, 0.3, 0.2, 0.1, 0.05]
    rates = [(1 + sum(chances[:n])) / (fixed + each * (1 + n)) for n in range(9)]
    assert max(range(9), key=rates.__getitem__) == expected
    clock, budget = Clock(monkeypatch, fixed, each), NodeBudget()
    for _ in range(20):
        clock.step(budget, chances)
    assert {clock.step(budget, chances) for _ in range(5)} == {expected}


def test_what_prompts_cost_is_not_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, budget = Clock(monkeypatch, 1.0, 0.0), NodeBudget()
    numbers = []
    for step in range(60):
        numbers.append(clock.step(budget, [0.5] * 4))
        if step % 3 == 2:
            clock.now += 100.0  # the next request's prompt
            clock.generation += 1
    assert set(numbers[20:]) == {4}


def test_each_batch_size_has_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, budget = Clock(monkeypatch, 1.0, 0.0), NodeBudget()
    for _ in range(25):
        clock.step(budget, [0.5] * 4, bs=1)
    clock.fixed, clock.each = 0.0, 1.0
    for _ in range(25):
        clock.step(budget, [0.5] * 4, bs=8)
    assert clock.step(budget, [0.5] * 4, bs=8) == 0
    clock.fixed, clock.each = 1.0, 0.0
    assert clock.step(budget, [0.5] * 4, bs=1) == 4


def test_invariant_13_replicas_take_the_number_that_they_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, budget = Clock(monkeypatch, 1.0, 0.0), NodeBudget(agree=lambda number: min(number, 1))
    for _ in range(20):
        clock.step(budget, [0.5] * 4)
    assert clock.step(budget, [0.5] * 4) == 1


def algorithm(name: str, **options: Any) -> MergedAlgorithm:
    made = create(ALGORITHMS, name, **options)
    assert isinstance(made, MergedAlgorithm)
    return made


def producer(name: str, **options: Any) -> MergedProducer:
    made = algorithm(name, **options).make_producer(replace(context(), vocabulary=VOCABULARY))
    assert isinstance(made, MergedProducer)
    return made


def view(tokens: list[int], regex: str | None = None, output: Sequence[int] = ()) -> RequestView:
    session = None
    if regex is not None:
        session = GrammarSession(VOCABULARY, matcher("xgrammar", GrammarSpec.regex(regex)))
        session.commit(output)
    return RequestView("r", [*tokens, *output], len(tokens), 20, SamplingParams(), grammar=session)


def test_lookup_goes_on_behind_what_is_forced_and_the_grammar_behind_that() -> None:
    merged = producer("forced+chain", budget=16)
    # The prompt has "2a12c1b": behind the forced a it goes on with 1, 2, and then ab is forced.
    requests = (view([TWO, A, ONE, TWO, C, ONE, B, C], "a[12]{2}abc"),)
    tree = merged.propose(DecodeBatch(0, requests))
    assert max(paths(tree, 0), key=len) == (A, ONE, TWO, TEXTS.index(b"abc"))
    assert tree.sources == ("forced", "chain")
    assert tree.source is not None
    assert [tree.sources[i] for i in tree.source[1:]] == ["forced", "chain", "chain", "forced"]


def test_illegal_drafts_are_not_proposed() -> None:
    history = [A, B, C, A, B]
    assert (C,) in paths(producer("chain+ngram", budget=16).propose(DecodeBatch(0, (view(history),))), 0)
    found = paths(producer("chain+ngram", budget=16).propose(DecodeBatch(0, (view(history, "[ab]*"),))), 0)
    assert found == [()], "c is what followed ab before, and nothing else is known"


def test_the_budget_goes_to_the_likeliest_of_the_batch() -> None:
    merged = producer("forced+chain", budget=2)
    sure = view([C, C], "(ab){8}c")
    unsure = replace(view([A, B, A], "[abc]*"), request_id="s")
    forced_rate = Origin(0, 200)
    assert merged._acceptance.rate(forced_rate) == merged._acceptance.rate(Origin(1, 0)), "no opinion at first"
    for _ in range(200):
        merged.propose(DecodeBatch(0, (sure,)))
        merged.observe([Commit("r", (AB, AB, AB), 2, 2, finished=False)])
    tree = merged.propose(DecodeBatch(1, (sure, unsure)))
    assert len(paths(tree, 0)) - 1 + len(paths(tree, 1)) - 1 == 4, "two a request on average"
    assert len(paths(tree, 0)) > len(paths(tree, 1))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"algorithm": "forced+forced"}, "names a part twice"),
        ({"algorithm": "forced+nothing"}, "no algorithm is called 'nothing'"),
        ({"algorithm": "forced+ngram", "algorithm_options": {"ngram": {"depth": 0}}}, "ngram: depth = 0"),
        (
            {"algorithm": "forced+ngram", "algorithm_options": {"ngram": 3}},
            "expected a table of ngram's options",
        ),
        ({"algorithm": "forced+ngram", "algorithm_options": {"depth": 3}}, "merged: no option 'depth'"),
        ({"algorithm": "forced+ngram", "algorithm_options": {"budget": 0}}, "merged: budget = 0"),
        ({"algorithm": "forced+ngram", "algorithm_options": {"budget": "most"}}, "merged: budget = 'most'"),
        (
            {
                "algorithm": "forced+chain",
                "algorithm_options": {"chain": {"drafter": "m", "draft_sampling": "sampled"}},
            },
            "may not be joined or cut",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_configured(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        toy_engine(**options)
    assert isinstance(caught.value, ConfigError) or "no algorithm" in message


def test_options_of_parts_come_in_their_tables() -> None:
    config = Config.from_toml(
        'algorithm = "forced+ngram"\n[algorithm_options]\nbudget = 8\nngram = { breadth = 1, depth = 3 }\n'
    )
    made = algorithm(config.algorithm, **config.algorithm_options)
    assert made.budget == 8
    assert dict(made.parts)["ngram"] == create(ALGORITHMS, "ngram", breadth=1, depth=3)


@settings(max_examples=40)
@given(data=st.data())
def test_the_output_is_that_of_none(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["forced", "forced+ngram", "ngram+chain", "forced+ngram+chain"]))
    options = {} if name == "forced" else {"budget": data.draw(st.sampled_from(["auto", 1, 5, 16]))}
    regex = data.draw(st.sampled_from(["(ab)+c", "a{2,5}(b|c)?", "[abc12]{3,9}", "(ab(1|2)){4}c", None]))
    sampling = SamplingParams(data.draw(st.sampled_from([0.0, 1.0])), seed=data.draw(st.integers(0, 99)))
    requests = [
        Request(str(i), (A, B, C, A), GrammarSpec.regex(regex) if regex else None, sampling, 24, logprobs=True)
        for i in range(3)
    ]
    plain, _ = toy_engine(max_batch_size=2)
    other, _ = toy_engine(max_batch_size=2, algorithm=name, algorithm_options=options)
    for one, two in zip(_by_id(plain.generate(requests)), _by_id(other.generate(requests)), strict=True):
        assert one.token_ids == two.token_ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)


def _by_id(outputs: Any) -> list[Any]:
    return sorted(outputs, key=lambda output: output.request_id)
