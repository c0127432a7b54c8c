"""Rejection sampling node by node; its law is tested in `test_accept_law`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.build import VOCAB, as_lists, forest, live, status_of, views, wants

INF, NAN = math.inf, math.nan
PADDING, REJECTED, ENDED, FREE, LIVE = NodeStatus
GREEDY = SamplingParams()
SAMPLING = SamplingParams(temperature=1.0, seed=3)


def test_a_dead_candidate_is_rejected_and_moves_the_residual() -> None:
    """p = (.5, .5, 0), q = (.5, 0, .5), the candidate is the illegal 2: what is left of p is token 1 alone."""
    num = 200
    tree = forest(*[([9, 2], [-1, 0])] * num)
    logits = torch.tensor([[0.0, 0.0, -INF]]).repeat(2 * num, 1)
    status = np.tile(status_of(LIVE, REJECTED), num)
    sampled = SampledProposals(np.tile([-1, 0], num), torch.tensor([[0.5, 0.0, 0.5]]))
    requests = [view for seed in range(num) for view in views(SamplingParams(temperature=1.0, seed=seed))]
    paths = accept(tree, logits, status, requests, method="rejection", sampled=sampled)
    assert (paths.accept_length == 0).all()
    assert (paths.bonus_token == 1).all()


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_a_residual_that_rounding_empties_still_gives_a_legal_token(seed: int, num_children: int) -> None:
    """All candidates are refused although p = q, so that nothing is left: the token comes from p."""
    row = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    row[0, 5:] = -INF
    tree = forest(([9, *[0] * num_children], [-1, *[0] * num_children]))
    status = status_of(LIVE, *[REJECTED] * num_children)
    sampled = SampledProposals(np.array([-1, *[0] * num_children]), row.softmax(-1))
    requests = views(SamplingParams(temperature=1.0, seed=seed))
    paths = accept(
        tree, row.expand(num_children + 1, -1), status, requests, method="rejection", sampled=sampled
    )
    assert paths.accept_length.tolist() == [0]
    assert 0 <= paths.bonus_token[0] < 5


def test_rejection_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(0)
    trees_alone, rows = [], []
    q = torch.rand(6, VOCAB, generator=torch.Generator().manual_seed(1)).softmax(-1)
    for _ in range(20):
        trees_alone.append((rng.integers(0, VOCAB, 5).tolist(), [-1, 0, 0, 1, 2]))
        rows.append(rng.integers(0, 6, 5))
    logits = torch.randn(100, VOCAB, generator=torch.Generator().manual_seed(2))
    requests = [view for seed in range(20) for view in views(SamplingParams(temperature=0.8, seed=seed))]
    together = forest(*trees_alone)
    paths = accept(
        together,
        logits,
        live(together),
        requests,
        method="rejection",
        sampled=SampledProposals(np.concatenate(rows), q),
    )
    assert 0 < (paths.accept_length > 0).sum() < 20
    for i, alone in enumerate(trees_alone):
        tree = forest(alone)
        one = accept(
            tree,
            logits[5 * i : 5 * i + 5],
            live(tree),
            requests[i : i + 1],
            method="rejection",
            sampled=SampledProposals(rows[i], q),
        )
        length = int(one.accept_length[0])
        assert length == paths.accept_length[i]
        assert one.bonus_token[0] == paths.bonus_token[i]
        assert one.accept_index[0, : length + 1].tolist() == paths.accept_index[i, : length + 1].tolist()


def test_each_candidate_has_a_random_number_of_its_own() -> None:
    """p = (.3, .36, .34), q = (.6, .3, .1), three candidates: the second one is often a close call as well.

    One number for all candidates would lower token 1 by 0.03 (w = 0.07); 20,000 requests at a level of 1e-6
    notice that with a power above 0.999.
    """
    num, p, q = 20_000, np.array([0.3, 0.36, 0.34]), np.array([0.6, 0.3, 0.1])
    children = np.random.default_rng(0).choice(3, (num, 3), p=q)
    tokens = np.concatenate((np.full((num, 1), 9), children), axis=1)
    parents = np.tile([-1, 0, 0, 0], num)
    tree = HostTree.from_parents(np.arange(num + 1) * 4, tokens.reshape(-1), parents)
    sampled = SampledProposals(parents.copy(), torch.from_numpy(q).float()[None])
    logits = torch.from_numpy(np.log(p)).float().expand(4 * num, -1)
    requests = [view for seed in range(num) for view in views(SamplingParams(temperature=1.0, seed=seed))]
    paths = accept(tree, logits, live(tree), requests, method="rejection", sampled=sampled)
    first = paths.accept_index[:, 1]
    token = np.where(first < 0, paths.bonus_token, tokens[np.arange(num), first])
    assert stats.chisquare(np.bincount(token), num * p).pvalue > 1e-6
    assert stats.ncx2.sf(stats.chi2.isf(1e-6, 2), 2, num * 0.07**2) > 0.999


def test_a_candidate_that_q_excludes_is_not_accepted() -> None:
    """Whoever states such a q did not draw from it; a greedy request does not ask for q."""
    tree = forest(([9, 4], [-1, 0]))
    q = torch.zeros(1, VOCAB)
    q[0, 5] = 1.0
    sampled = SampledProposals(np.array([-1, 0]), q)
    paths = accept(tree, wants(4, 7), live(tree), views(SAMPLING), method="rejection", sampled=sampled)
    assert as_lists(paths) == ([[0]], [0], [4])
    paths = accept(tree, wants(4, 7), live(tree), views(GREEDY), method="rejection", sampled=sampled)
    assert as_lists(paths) == ([[0, 1]], [1], [7])


def test_chosen_children_below_sampled_ones_are_target_only() -> None:
    """Per node, not per tree: the root's child was drawn (and is certain), the one below was chosen."""
    tree = forest(([9, 4, 5], [-1, 0, 1]))
    q = torch.zeros(1, VOCAB)
    q[0, 4] = 1.0
    sampled = SampledProposals(np.array([-1, 0, -1]), q)
    paths = accept(tree, wants(4, 5, 6), live(tree), views(SAMPLING), method="rejection", sampled=sampled)
    assert as_lists(paths) == ([[0, 1, 2]], [2], [6])


def test_a_mixture_of_chosen_and_sampled_siblings_is_refused() -> None:
    tree = forest(([9, 4], [-1, 0]), ([9, 1, 4, 5, 6], [-1, 0, 1, 1, 1]))
    sampled = SampledProposals(np.array([-1, 0, -1, 0, 0, 0, -1]), torch.full((1, VOCAB), 0.1))
    logits = torch.zeros(7, VOCAB)
    with pytest.raises(ConfigError, match=r"request 'r1': of the siblings 3 and 4 one was drawn"):
        accept(tree, logits, live(tree), views(SAMPLING, 2), method="rejection", sampled=sampled)
    accept(tree, logits, live(tree), views(GREEDY, 2), method="rejection", sampled=sampled)
    accept(tree, logits, live(tree), views(SAMPLING, 2), sampled=sampled)
