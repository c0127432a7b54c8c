"""Trees of n-grams against a slow count of everything that was written, and what they do on real text."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import Topology, TreeProducer
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.trees.tree import DraftTree
from tests.spec.drafting import batch, commit, context, host, paths, view

NUM_VOTERS = 16


def producer(**options: Any) -> TreeProducer:
    return NgramAlgorithm(**options).make_producer(context())


@dataclass
class SlowReference:
    """All sequences, and who wrote which token when; nothing is indexed and nothing is forgotten."""

    options: NgramAlgorithm
    sequences: list[list[int]] = field(default_factory=list)
    written: list[tuple[int, int]] = field(default_factory=list)

    def start(self, prompt: Sequence[int]) -> int:
        self.sequences.append(list(prompt))
        return len(self.sequences) - 1

    def write(self, sequence: int, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.written.append((sequence, len(self.sequences[sequence])))
            self.sequences[sequence].append(token)

    def voters(self, sequence: int, depth: int) -> list[tuple[list[int], int]]:
        """Continuation and votes of each occurrence, in the order in which they count."""
        own = self.sequences[sequence]
        live = self.written[-self.options.capacity :] if self.options.shared else []
        found: dict[tuple[str, int, int], tuple[list[int], int]] = {}
        for length in range(self.options.max_match, self.options.min_match - 1, -1):
            end = own[-length:]
            if len(end) < length:
                continue
            in_own = [place for place in range(length, len(own)) if own[place - length : place] == end]
            for place in in_own[::-1][:NUM_VOTERS]:
                period = own[place:]
                going_on = [period[i % len(period)] for i in range(depth)]
                found.setdefault(("own", 0, place), (going_on, length))
            in_shared = [
                (s, place)
                for s, place in live
                if place >= length and self.sequences[s][place - length : place] == end
            ]
            for s, place in in_shared[::-1][:NUM_VOTERS]:
                found.setdefault(("shared", s, place), (self.sequences[s][place : place + depth], length))
        return list(found.values())[:NUM_VOTERS]

    def chances(self, sequence: int, depth: int) -> dict[tuple[int, ...], tuple[float, float]]:
        """Score and chance of every path that the tree may have."""
        voters = self.voters(sequence, depth)
        found: dict[tuple[int, ...], tuple[float, float]] = {}

        def descend(path: tuple[int, ...], chance: float) -> None:
            here = [(c, v) for c, v in voters if tuple(c[: len(path)]) == path and len(c) > len(path)]
            tokens = list(dict.fromkeys(c[len(path)] for c, _ in here))
            votes = {token: sum(v for c, v in here if c[len(path)] == token) for token in tokens}
            tokens.sort(key=lambda token: -votes[token])
            for token in tokens[: self.options.breadth]:
                score = votes[token] / (sum(votes.values()) + 1)
                found[*path, token] = score, chance * score
                descend((*path, token), chance * score)

        descend((), 1.0)
        return found

    def check(self, tree: DraftTree, request: int, sequence: int, depth: int) -> None:
        """The tree has the likeliest nodes of all, the likeliest first, with the right scores."""
        expected = self.chances(sequence, depth)
        found = paths(tree, request)[1:]
        assert len(found) == min(self.options.num_draft_tokens, len(expected))
        assert tree.score is not None
        first = int(tree.cu_nodes[request]) + 1
        scores = tree.score[first : first + len(found)].tolist()
        assert scores == pytest.approx([expected[path][0] for path in found])
        chances = [expected[path][1] for path in found]
        assert chances == sorted(chances, reverse=True)
        best = sorted((chance for _, chance in expected.values()), reverse=True)
        assert chances == pytest.approx(best[: len(found)])


tokens = st.integers(0, 2)


@st.composite
def options(draw: st.DrawFn, *, shared: bool) -> NgramAlgorithm:
    min_match = draw(st.integers(1, 3))
    return NgramAlgorithm(
        num_draft_tokens=draw(st.integers(1, 20)),
        breadth=draw(st.integers(1, 4)),
        depth=draw(st.integers(1, 6)),
        min_match=min_match,
        max_match=draw(st.integers(min_match, 5)),
        shared=shared,
        capacity=draw(st.integers(1, 30)),
    )


@given(algorithm=options(shared=False), text=st.lists(tokens, min_size=1, max_size=80), most=st.integers(0, 8))
def test_a_tree_is_the_vote_of_all_occurrences(algorithm: NgramAlgorithm, text: list[int], most: int) -> None:
    reference = SlowReference(algorithm)
    reference.start(text)
    tree = algorithm.make_producer(context()).propose(batch(view(text, max_draft_tokens=most)))
    reference.check(tree, 0, 0, min(algorithm.depth, most))


@given(
    algorithm=options(shared=True),
    prompts=st.lists(st.lists(tokens, min_size=1, max_size=10), min_size=1, max_size=3),
    turns=st.lists(st.tuples(st.integers(0, 2), st.lists(tokens, min_size=1, max_size=6)), max_size=25),
)
def test_the_shared_corpus_is_the_last_tokens_that_were_written(
    algorithm: NgramAlgorithm, prompts: list[list[int]], turns: list[tuple[int, list[int]]]
) -> None:
    """Requests take turns at writing; the capacity is small, so that most of it is evicted on the way."""
    reference, made = SlowReference(algorithm), algorithm.make_producer(context())
    for prompt in prompts:
        reference.start(prompt)

    def propose() -> DraftTree:
        return made.propose(
            batch(
                *(
                    view(tokens, str(index), num_prompt_tokens=len(prompt))
                    for index, (tokens, prompt) in enumerate(zip(reference.sequences, prompts, strict=True))
                )
            )
        )

    propose()
    for turn, new in turns:
        writer = turn % len(prompts)
        reference.write(writer, new)
        made.observe([commit(new, str(writer))])
        tree = propose()
        for index in range(len(prompts)):
            reference.check(tree, index, index, algorithm.depth)


@dataclass(frozen=True)
class Change:
    """How a request's tokens change before its next view: cut back to a length, then grown."""

    keep: int
    text: list[int]
    told: str

    def apply(self, before: list[int]) -> list[int]:
        return [*before[: self.keep], *self.text]


changes = st.builds(
    Change,
    keep=st.one_of(st.just(1000), st.integers(0, 30)),
    text=st.lists(tokens, min_size=1, max_size=8),
    told=st.sampled_from(["before", "after", "never"]),
)


@given(changes=st.lists(changes, min_size=1, max_size=12), algorithm=options(shared=False))
def test_a_history_follows_the_view_whatever_was_reported(
    changes: list[Change], algorithm: NgramAlgorithm
) -> None:
    """Commits come early, late or never, and the request is cut back, or is another one under the same id."""
    made = algorithm.make_producer(context())
    shown: list[int] = []
    for change in changes:
        now = change.apply(shown)
        if change.told == "before":
            made.observe([commit(change.text)])
        tree = made.propose(batch(view(now)))
        if change.told == "after":
            made.observe([commit(change.text)])
        fresh = algorithm.make_producer(context()).propose(batch(view(now)))
        assert paths(tree) == paths(fresh)
        shown = now


def test_of_equals_the_most_recent_comes_first() -> None:
    tree = producer(shared=False, depth=1).propose(batch(view([9, 1, 9, 2, 9, 3, 9])))
    assert paths(tree) == [(), (3,), (2,), (1,)]
    assert tree.score is not None
    assert tree.score.tolist() == pytest.approx([1, 1 / 4, 1 / 4, 1 / 4])


def test_a_longer_match_outvotes_a_shorter_one() -> None:
    tree = producer(shared=False, depth=1).propose(batch(view([5, 9, 1, 6, 9, 2, 5, 9])))
    assert paths(tree) == [(), (1,), (2,)]
    assert tree.score is not None
    assert tree.score.tolist() == pytest.approx([1, 2 / 4, 1 / 4])


def test_what_is_frequent_comes_before_what_is_recent() -> None:
    tree = producer(shared=False, depth=1, max_match=1).propose(batch(view([9, 1, 9, 1, 9, 2, 9])))
    assert paths(tree) == [(), (1,), (2,)]


def test_a_cycle_goes_on_beyond_its_end() -> None:
    made = producer(shared=False, num_draft_tokens=7, breadth=1)
    assert paths(made.propose(batch(view([1, 2, 3, 1, 2, 3]))))[-1] == (1, 2, 3, 1, 2, 3, 1)
    assert paths(made.propose(batch(view([4, 4], "run"))))[-1] == (4,) * 7


RECORDS = b'[{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}, {"id": 1'


def test_repeated_json_is_continued_rightly() -> None:
    made = producer(shared=False, num_draft_tokens=11, depth=11, breadth=1)
    assert bytes(paths(made.propose(batch(view(RECORDS))))[-1]) == b', "name": "'
    # Where the records differ the tree branches, and it knows both ways.
    tree = producer(shared=False, num_draft_tokens=16).propose(batch(view(RECORDS + b', "name": "')))
    assert {bytes(path) for path in paths(tree)} > {b"b", b"bob", b"a", b"ada"}


def accept(made: TreeProducer, request_id: str, prompt: list[int], output: list[int]) -> list[int]:
    """Decode a known output greedily; how many tokens each step committed."""
    done, lengths = 0, []
    while done < len(output):
        tokens = [*prompt, *output[:done]]
        request = view(
            tokens, request_id, num_prompt_tokens=len(prompt), max_draft_tokens=len(output) - done - 1
        )
        right = [
            path for path in paths(made.propose(batch(request))) if path == tuple(output[done:][: len(path)])
        ]
        lengths.append(1 + max(map(len, right)))
        new = output[done : done + lengths[-1]]
        done += len(new)
        made.observe([commit(new, request_id, finished=done == len(output))])
    return lengths


def test_a_second_request_learns_from_the_first() -> None:
    output = list(b'{"city": "Paris", "unit": "celsius"}')
    made = producer()
    first = accept(made, "first", [200, 201], output)
    second = accept(made, "second", [210, 201], output)
    assert sum(first) == sum(second) == len(output) == 36
    assert len(second) < len(first) / 2
    alone = producer(shared=False)
    assert accept(alone, "first", [200, 201], output) == first
    assert accept(alone, "second", [210, 201], output) == first


def test_requests_in_flight_learn_from_each_other() -> None:
    made = producer()
    made.propose(batch(view([1], "a"), view([2], "b")))
    made.observe([commit([7, 8, 9], "a"), commit([7], "b")])
    tree = made.propose(
        batch(view([1, 7, 8, 9], "a", num_prompt_tokens=1), view([2, 7], "b", num_prompt_tokens=1))
    )
    assert paths(tree, 1) == [(), (8,), (8, 9)]


@pytest.mark.parametrize("order", ["observed first", "shown first"])
def test_what_is_written_is_learnt_once_whoever_tells_it_first(order: str) -> None:
    """Under overlap the view that shows tokens may come before the commit that reports them."""
    made = NgramAlgorithm().make_producer(context())
    assert made._shared is not None
    tokens = [1, 2]
    made.propose(batch(view(tokens, num_prompt_tokens=2)))
    for new in ([3, 4], [5], [6, 7, 8]):
        tokens = tokens + new
        if order == "observed first":
            made.observe([commit(new)])
            assert len(made._shared) == len(tokens) - 2
        made.propose(batch(view(tokens, num_prompt_tokens=2)))
        assert len(made._shared) == len(tokens) - 2
        if order == "shown first":
            made.observe([commit(new)])
        assert len(made._shared) == len(tokens) - 2
    made.observe([commit([9], finished=True)])
    assert len(made._shared) == 7


def test_nodes_name_whose_text_they_come_from() -> None:
    made = producer()
    made.propose(batch(view([1], "a"), view([5, 2, 5], "b")))
    made.observe([commit([5, 3], "a", finished=True)])
    tree = made.propose(batch(view([5, 2, 5], "b")))
    assert tree.source is not None
    assert paths(tree)[1:3] == [(2,), (3,)]
    assert [tree.sources[source] for source in tree.source[1:3]] == ["ngram.history", "ngram.shared"]


def test_prompts_are_not_shared() -> None:
    made = producer()
    made.propose(batch(view([1, 2, 3, 4], "a")))
    assert paths(made.propose(batch(view([1, 2], "b")))) == [()]


def test_evicted_text_is_never_proposed() -> None:
    made = producer(capacity=10)
    made.propose(batch(view([1], "old")))
    made.observe([commit([2, 3, 4, 5], "old", finished=True)])
    probe = view([9, 2], "probe")
    assert paths(made.propose(batch(probe)))[-1] == (3, 4, 5)
    made.propose(batch(view([1], "new")))
    for num_written in range(5, 15):
        made.observe([commit([20 + num_written], "new")])
        found = paths(made.propose(batch(probe)))[-1]
        # 3 was the second token of all. As long as it is held, so is what followed it.
        assert found == ((3, 4, 5) if num_written - 10 < 2 else ())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens = 0"),
        ({"num_draft_tokens": "8"}, "num_draft_tokens = '8'"),
        ({"breadth": True}, "breadth = True"),
        ({"depth": -1}, "depth = -1"),
        ({"capacity": 0}, "capacity = 0"),
        ({"capacity": 1e6}, "capacity = 1000000.0"),
        ({"min_match": 0}, "min_match = 0"),
        ({"min_match": 5, "max_match": 4}, "min_match = 5; expected at most max_match = 4"),
        ({"shared": 1}, "shared = 1; expected True or False"),
    ],
)
def test_invariant_10_impossible_options_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match="^ngram: " + named):
        NgramAlgorithm(**wrong)


def test_the_topology_follows_from_the_options() -> None:
    assert NgramAlgorithm(num_draft_tokens=7, depth=8).topology == Topology("tree", 8, 7)
    assert NgramAlgorithm(num_draft_tokens=15, depth=4, breadth=1).topology == Topology("chain", 16, 4)


def num_calls(run: Callable[[], object]) -> int:
    """Calls of Python and C functions: a measure of work that no other process disturbs."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("shared", [True, False])
def test_work_does_not_grow_with_the_history(shared: bool) -> None:
    text = random.Random(0).choices(range(50), k=20_000)
    work = []
    for length in (500, 20_000):
        made = producer(shared=shared, num_draft_tokens=16)
        prompt = length // 2
        request = view(text[:length], num_prompt_tokens=prompt)
        made.propose(batch(request))
        tree = made.propose(batch(request))
        assert host(tree).num_nodes == 17
        work.append(num_calls(lambda: made.propose(batch(request))))  # noqa: B023  # called at once
        work.append(num_calls(lambda: made.observe([commit([1, 2])])))  # noqa: B023
    assert work[2] < 1.5 * work[0]
    assert work[3] <= 1.5 * work[1]
