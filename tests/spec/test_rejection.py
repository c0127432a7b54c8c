"""Rejection sampling node by node; its law is tested in `test_accept_law`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import SampledProposals
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
