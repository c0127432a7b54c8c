"""Chains: prompt lookup against a scan of the text, and a draft model's answer turned into trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.drafter import Drafts
from specgrammar.protocols.spec import DecodeBatch, Proposal, Topology
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.sampling import SamplingParams
from tests.spec.drafting import VOCAB_SIZE, MarkovDrafter, arrays, batch, commit, context, host, paths, view

WARM = SamplingParams(temperature=0.8, seed=5)


def scan(text: list[int], min_match: int, max_match: int, num_tokens: int) -> tuple[int, ...]:
    """Prompt lookup as one would explain it."""
    for length in range(max_match, min_match - 1, -1):
        for place in range(len(text) - 1, length - 1, -1):
            if len(text) >= length and text[place - length : place] == text[len(text) - length :]:
                longer = list(text)
                for _ in range(num_tokens):
                    longer.append(longer[place])
                    place += 1
                return tuple(longer[len(text) :])
    return ()


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 60), max_size=5),
    min_match=st.integers(1, 3),
    more=st.integers(0, 3),
    num_draft_tokens=st.integers(1, 9),
    most=st.integers(0, 9),
)
def test_lookup_copies_behind_the_latest_of_the_longest_matches(
    text: list[int], cuts: list[int], min_match: int, more: int, num_draft_tokens: int, most: int
) -> None:
    options = {"min_match": min_match, "max_match": min_match + more, "num_draft_tokens": num_draft_tokens}
    producer = ChainAlgorithm(**options).make_producer(context())  # type: ignore[arg-type]  # ints all
    for end in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        tree = producer.propose(batch(view(text[:end], max_draft_tokens=most)))
        expected = scan(text[:end], min_match, min_match + more, min(num_draft_tokens, most))
        assert paths(tree)[-1] == expected


def test_lookup_learns_from_commits_and_forgets_with_the_request() -> None:
    producer = ChainAlgorithm().make_producer(context())
    assert paths(producer.propose(batch(view([1, 2, 3])))) == [()]
    producer.observe([commit([4, 1])])
    assert paths(producer.propose(batch(view([1, 2, 3, 4, 1]))))[-1] == (2, 3, 4, 1)
    producer.observe([commit([2], finished=True)])
    assert paths(producer.propose(batch(view([9, 1])))) == [()]


def test_a_model_drafts_greedily() -> None:
    drafter = MarkovDrafter()
    producer = ChainAlgorithm(drafter="markov", num_draft_tokens=3).make_producer(context(drafter))
    tree = producer.propose(batch(view([4, 7], "a"), view([2], "b", sampling=WARM)))
    best = drafter.logits.argmax(axis=1)
    for request, last in enumerate((7, 2)):
        expected = [int(best[last])]
        for _ in range(2):
            expected.append(int(best[expected[-1]]))
        assert paths(tree, request)[-1] == tuple(expected)
    assert tree.sampled is None
    assert tree.source is not None
    assert {tree.sources[source] for source in tree.source} == {"chain"}
    assert drafter.calls == [(3, False)]


def test_sampled_nodes_state_what_they_were_drawn_from() -> None:
    drafter = MarkovDrafter()
    algorithm = ChainAlgorithm(drafter="markov", num_draft_tokens=4, draft_sampling="sampled")
    assert algorithm.proposal is Proposal.SAMPLED
    requests = batch(
        view([1, 3], "warm", sampling=WARM),
        view([1, 3], "greedy"),
        view([5], "root", sampling=WARM, max_draft_tokens=0),
        view([1, 6], "short", sampling=SamplingParams(temperature=2.0, seed=9), max_draft_tokens=2),
    )
    tree = algorithm.make_producer(context(drafter)).propose(requests)
    assert tree.sampled is not None
    assert tree.sampled.q.dtype == torch.float32
    assert tree.sampled.q.shape == (4 * 4, VOCAB_SIZE)
    assert [len(paths(tree, request)) for request in range(4)] == [5, 5, 1, 3]
    for index, request in enumerate(requests.requests):
        first = int(tree.cu_nodes[index])
        chain = host(tree).draft_tokens[first : int(tree.cu_nodes[index + 1])].tolist()
        rows = tree.sampled.row_of_node[first : first + len(chain)].tolist()
        assert rows[0] == -1
        for parent, token, row in zip(chain[:-1], chain[1:], rows[1:], strict=True):
            if request.sampling.greedy:
                assert row == -1
                assert token == drafter.logits[parent].argmax()
            else:
                q = tree.sampled.q[row].numpy()
                assert np.array_equal(q, drafter.q(parent, request.sampling))
                assert q[token] > 0
    used = tree.sampled.row_of_node[tree.sampled.row_of_node >= 0].tolist()
    assert len(set(used)) == len(used) == 6


def test_sampled_drafts_have_the_law_that_they_state() -> None:
    """Drafts under 4,000 seeds against the stated q: chi-squared, 15 degrees of freedom, refused at 1e-6."""
    drafter = MarkovDrafter()
    producer = ChainAlgorithm(drafter="markov", num_draft_tokens=1, draft_sampling="sampled").make_producer(
        context(drafter)
    )
    warm = [SamplingParams(temperature=2.0, seed=seed) for seed in range(4_000)]
    tree = producer.propose(batch(*(view([3], str(i), sampling=params) for i, params in enumerate(warm))))
    assert tree.sampled is not None
    counts = np.bincount(host(tree).draft_tokens[1::2], minlength=VOCAB_SIZE)
    expected = 4_000 * drafter.q(3, warm[0]).astype(np.float64)
    assert ((counts - expected) ** 2 / expected).sum() < 56.5
    assert tree.sampled.row_of_node[1::2].tolist() == list(range(4_000))


def test_a_batch_that_is_all_greedy_is_drafted_without_distributions() -> None:
    drafter = MarkovDrafter()
    sampled = ChainAlgorithm(drafter="markov", draft_sampling="sampled").make_producer(context(drafter))
    greedy = ChainAlgorithm(drafter="markov").make_producer(context(drafter))
    requests = batch(view([1], "a"), view([2], "b"))
    assert arrays(sampled.propose(requests)) == arrays(greedy.propose(requests))
    assert drafter.calls == [(4, False)] * 2


def test_the_drafter_is_asked_for_no_more_than_is_needed() -> None:
    drafter = MarkovDrafter()
    producer = ChainAlgorithm(drafter="markov", num_draft_tokens=4).make_producer(context(drafter))
    tree = producer.propose(batch(view([1], "a", max_draft_tokens=2), view([2], "b", max_draft_tokens=1)))
    assert [len(paths(tree, request)) for request in range(2)] == [3, 2]
    assert drafter.calls == [(2, False)]
    producer.propose(batch(view([1], "a", max_draft_tokens=0)))
    assert drafter.calls == [(2, False)]


def test_the_drafter_forgets_finished_requests() -> None:
    drafter = MarkovDrafter()
    producer = ChainAlgorithm(drafter="markov").make_producer(context(drafter))
    producer.propose(batch(view([1], "a"), view([2], "b")))
    producer.observe(
        [commit([3], "a", finished=True), commit([3], "b"), commit([3], "never seen", finished=True)]
    )
    assert list(drafter.kept) == ["b"]


class BrokenDrafter(MarkovDrafter):
    """Breaks one of the promises of `CausalDrafter`."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        drafts = super().draft(batch, num_tokens, sampled=sampled)
        if self.fault == "too few tokens":
            return replace(drafts, tokens=drafts.tokens[:, :-1])
        if self.fault == "no q":
            return replace(drafts, q=None)
        assert drafts.q is not None
        return replace(drafts, q=drafts.q[:, :, :-1])


class LostDrafter(MarkovDrafter):
    """Its logits are NaN behind the tokens of `lost`: nothing may be drawn there, which is the id `said`."""

    def __init__(self, lost: set[int], said: int) -> None:
        super().__init__()
        self.lost, self.said = lost, said

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        drafts = super().draft(batch, num_tokens, sampled=sampled)
        for row, chain in enumerate(drafts.tokens.tolist()):
            for column in range(num_tokens):
                if self.lost & set(chain[: column + 1]):
                    drafts.tokens[row, 1 + column] = self.said
                    if drafts.q is not None:
                        drafts.q[row, column] = 0.0
        return drafts


@pytest.mark.parametrize("said", [-1, VOCAB_SIZE, -(2**62), 2**62])
@pytest.mark.parametrize("draft_sampling", ["greedy", "sampled"])
@given(
    lost=st.sets(st.integers(0, VOCAB_SIZE - 1)),
    lasts=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=5),
    warm=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_chain_ends_before_what_is_no_token(
    draft_sampling: Any, said: int, lost: set[int], lasts: list[int], warm: list[bool]
) -> None:
    algorithm = ChainAlgorithm(drafter="markov", num_draft_tokens=4, draft_sampling=draft_sampling)
    views = [
        view([1, last], str(i), sampling=WARM if warm[i] else SamplingParams(), max_draft_tokens=4 - i % 2)
        for i, last in enumerate(lasts)
    ]
    whole = algorithm.make_producer(context(MarkovDrafter())).propose(batch(*views))
    tree = algorithm.make_producer(context(LostDrafter(lost, said))).propose(batch(*views))
    assert (tree.sampled is None) == (whole.sampled is None)
    for i, last in enumerate(lasts):
        chain = (last, *paths(whole, i)[-1])
        num_kept = next((column for column, token in enumerate(chain) if token in lost), len(chain) - 1)
        assert paths(tree, i)[-1] == chain[1 : 1 + num_kept]
        if tree.sampled is not None and whole.sampled is not None:
            first, first_whole = int(tree.cu_nodes[i]), int(whole.cu_nodes[i])
            for node in range(1 + num_kept):
                row = int(tree.sampled.row_of_node[first + node])
                assert row == int(whole.sampled.row_of_node[first_whole + node])
                assert (row >= 0) == (warm[i] and node > 0)
                if row >= 0:
                    assert np.array_equal(tree.sampled.q[row], MarkovDrafter().q(chain[node - 1], WARM))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("too few tokens", r"'markov' returned token ids of shape \(1, 4\); expected \(1, 5\)"),
        ("no q", r"'markov' returned probabilities of shape None; expected \(1, 4, 16\)"),
        ("narrow q", r"'markov' returned probabilities of shape \(1, 4, 15\); expected \(1, 4, 16\)"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_named(fault: str, message: str) -> None:
    producer = ChainAlgorithm(drafter="markov", draft_sampling="sampled").make_producer(
        context(BrokenDrafter(fault))
    )
    with pytest.raises(ModelError, match=message):
        producer.propose(batch(view([1], sampling=WARM)))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"drafter": ""}, "drafter = ''; expected 'prompt_lookup' or"),
        ({"drafter": None}, "drafter = None"),
        ({"num_draft_tokens": 0}, "num_draft_tokens = 0; expected an integer >= 1"),
        ({"num_draft_tokens": 2.0}, "num_draft_tokens = 2.0"),
        ({"num_draft_tokens": True}, "num_draft_tokens = True"),
        ({"num_draft_tokens": 2**70}, "num_draft_tokens = 1180591620717411303424"),
        ({"draft_sampling": "argmax"}, "draft_sampling = 'argmax'; expected 'greedy' or 'sampled'"),
        ({"draft_sampling": "sampled"}, "draft_sampling = 'sampled' with drafter = 'prompt_lookup'"),
        ({"min_match": 3, "max_match": 2}, "min_match = 3; expected at most max_match = 2"),
        ({"max_match": 0}, "max_match = 0"),
    ],
)
def test_invariant_10_impossible_options_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match="^chain: " + named):
        ChainAlgorithm(**wrong)


def test_invariant_10_a_drafter_that_does_not_fit_is_refused_when_it_is_loaded() -> None:
    algorithm = ChainAlgorithm(drafter="markov")
    with pytest.raises(ConfigError, match="'markov' has 17 tokens, the target 16"):
        algorithm.make_producer(context(MarkovDrafter(VOCAB_SIZE + 1)))
    with pytest.raises(ConfigError, match="draft model 'markov'"):
        algorithm.make_producer(context())


def test_the_topology_follows_from_the_options() -> None:
    assert ChainAlgorithm(num_draft_tokens=5).topology == Topology("chain", max_nodes=6, max_depth=5)
    assert ChainAlgorithm().proposal is Proposal.POINT
