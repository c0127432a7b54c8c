"""The walk: which nodes may be accepted, where a path ends, and what is refused."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError, TreeError
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.spec import Proposal
from specgrammar.spec.accept import accept, check_acceptance
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.testing.strategies import trees
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.build import VOCAB, as_lists, forest, live, status_of, views, wants

INF, NAN = math.inf, math.nan
PADDING, REJECTED, ENDED, FREE, LIVE = NodeStatus
GREEDY = SamplingParams()
METHODS: tuple[AcceptMethod, ...] = ("target_only", "rejection")
SAMPLING = SamplingParams(temperature=1.0, seed=3)
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLING], ids=["greedy", "sampling"])


@BOTH
def test_walks_each_request_to_its_own_depth(params: SamplingParams) -> None:
    tree = forest(([9, 1, 2, 3, 4], [-1, 0, 0, 2, 3]), ([9], [-1]), ([9, 5, 6], [-1, 0, 1]))
    logits = wants(2, 0, 3, 4, 7, 8, 5, 0, 0)
    paths = accept(tree, logits, live(tree), views(params, 3))
    assert as_lists(paths) == ([[0, 2, 3, 4], [0, -1, -1, -1], [0, 1, -1, -1]], [3, 0, 1], [7, 8, 0])
    assert paths.logprobs is None


@BOTH
def test_of_equal_siblings_the_lowest_that_may_be_accepted_wins(params: SamplingParams) -> None:
    tree = forest(([9, 4, 4, 4, 7], [-1, 0, 0, 0, 2]))
    status = status_of(LIVE, REJECTED, FREE, LIVE, LIVE)
    paths = accept(tree, wants(4, 0, 7, 0, 1), status, views(params))
    assert as_lists(paths) == ([[0, 2, 4]], [2], [1])


@BOTH
@pytest.mark.parametrize("dead", [REJECTED, PADDING])
def test_invariant_4_dead_node_is_never_accepted(params: SamplingParams, dead: NodeStatus) -> None:
    """Also where the logits say nothing else."""
    tree = forest(([9, 4, 5], [-1, 0, 1]))
    paths = accept(tree, wants(4, 5, 6), status_of(LIVE, dead, LIVE), views(params))
    assert as_lists(paths) == ([[0]], [0], [4])


@given(trees(max_requests=3, max_nodes=8, vocab_size=4), st.data())
def test_invariant_4_dead_node_is_never_accepted_in_any_tree(tree: HostTree, data: st.DataObject) -> None:
    """Statuses and logits at random, and not in keeping with each other; both methods, greedy and sampled."""
    num_nodes, bs = len(tree.draft_tokens), tree.bs
    any_status = st.lists(st.sampled_from(list(NodeStatus)), min_size=num_nodes, max_size=num_nodes)
    status = np.where(tree.draft_tokens < 0, PADDING, status_of(*data.draw(any_status)))
    values = st.sampled_from([0.0, 1.0, 9.0, -INF, NAN, INF])
    rows = data.draw(st.lists(st.lists(values, min_size=4, max_size=4), min_size=num_nodes, max_size=num_nodes))
    params = data.draw(st.lists(st.sampled_from([GREEDY, SAMPLING]), min_size=bs, max_size=bs))
    requests = [view for p in params for view in views(p)]
    logits = torch.tensor(rows).reshape(num_nodes, 4)
    sampled = SampledProposals(np.zeros(num_nodes, dtype=np.int64), torch.tensor([[0.4, 0.3, 0.3, 0.0]]))
    for method in METHODS:
        paths = accept(tree, logits, status, requests, method=method, sampled=sampled, want_logprobs=True)
        assert paths.logprobs is not None
        for request in range(bs):
            root = tree.cu_nodes[request]
            path = paths.accept_index[request]
            accepted = path[path >= 0]
            assert len(accepted) == paths.accept_length[request] + 1
            assert (path[len(accepted) :] == -1).all()
            assert accepted[0] == 0
            assert np.isin(status[root + accepted[1:]], (LIVE, FREE, ENDED)).all()
            assert np.isin(status[root + accepted[1:-1]], (LIVE, FREE)).all()
            last, bonus = root + accepted[-1], paths.bonus_token[request]
            over = status[last] not in (LIVE, FREE)
            unusable = not logits[last].max().isfinite()
            assert (bonus == -1) == (over or unusable)
            assert not over or len(accepted) == 1 or status[last] == ENDED
            num_committed = len(accepted) - 1 + (bonus >= 0)
            logprobs = paths.logprobs[request]
            assert np.isfinite(logprobs[:num_committed]).all()
            assert np.isnan(logprobs[num_committed:]).all()
            if bonus >= 0:
                assert logits[last, bonus] > -INF


@BOTH
@pytest.mark.parametrize("root", [REJECTED, PADDING, ENDED])
def test_a_request_that_failed_or_is_over_gets_nothing(params: SamplingParams, root: NodeStatus) -> None:
    tree = forest(([9, 4], [-1, 0]), ([9, 4], [-1, 0]))
    status = status_of(root, LIVE, LIVE, LIVE)
    paths = accept(tree, wants(4, 5, 4, 5), status, views(params, 2), want_logprobs=True)
    assert as_lists(paths) == ([[0, -1], [0, 1]], [0, 1], [-1, 5])
    assert paths.logprobs is not None
    assert np.isnan(paths.logprobs[0]).all()


@BOTH
def test_nothing_follows_the_end(params: SamplingParams) -> None:
    tree = forest(([9, 4, 5], [-1, 0, 1]))
    paths = accept(tree, wants(4, 5, 6), status_of(LIVE, ENDED, LIVE), views(params), want_logprobs=True)
    assert as_lists(paths) == ([[0, 1]], [1], [-1])
    assert paths.logprobs is not None
    assert paths.logprobs.tolist() == [[0.0, pytest.approx(NAN, nan_ok=True)]]


@BOTH
@pytest.mark.parametrize("bad", [-INF, NAN, INF])
def test_a_row_that_offers_nothing_ends_the_path_without_a_token(params: SamplingParams, bad: float) -> None:
    """A child whose token is -1, as padding has, is not what the missing token matches."""
    tree = forest(([9, 4, -1, 5], [-1, 0, 1, 1]), ([9, 4], [-1, 0]))
    logits = wants(4, 0, 0, 0, 4, 5)
    logits[1] = -INF
    logits[1, 5] = bad
    paths = accept(tree, logits, live(tree), views(params, 2), want_logprobs=True)
    assert as_lists(paths) == ([[0, 1], [0, 1]], [1, 1], [-1, 5])
    assert paths.logprobs is not None
    assert np.isnan(paths.logprobs[0, 1])


@BOTH
def test_padded_columns_and_padded_nodes(params: SamplingParams) -> None:
    tree = forest(([9, -1, 4, -1], [-1, -1, 0, -1]))
    status = status_of(LIVE, PADDING, FREE, PADDING)
    paths = accept(tree, wants(4, 0, 6, 0, columns=16), status, views(params))
    assert as_lists(paths) == ([[0, 2]], [1], [6])


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch(method: AcceptMethod) -> None:
    tree = HostTree(np.zeros(1, dtype=np.int64), *(np.zeros(0, dtype=np.int64) for _ in range(3)))
    sampled = SampledProposals(np.zeros(0, dtype=np.int64), torch.zeros(0, VOCAB))
    paths = accept(
        tree, torch.zeros(0, VOCAB), live(tree), [], method=method, sampled=sampled, want_logprobs=True
    )
    assert paths.accept_index.shape == (0, 1)
    assert paths.accept_length.shape == paths.bonus_token.shape == (0,)
    assert paths.logprobs is not None
    assert paths.logprobs.shape == (0, 1)


@BOTH
def test_a_deep_chain(params: SamplingParams) -> None:
    num_nodes = 1001
    tokens = [(7 * node) % VOCAB for node in range(num_nodes)]
    tree = forest((tokens, range(-1, num_nodes - 1)))
    logits = wants(*tokens[1:], 3)
    paths = accept(tree, logits, live(tree), views(params), want_logprobs=True)
    assert paths.accept_length.tolist() == [1000]
    assert paths.accept_index.tolist() == [list(range(num_nodes))]
    assert paths.bonus_token.tolist() == [3]
    assert paths.logprobs is not None
    assert (paths.logprobs == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_greedy_takes_the_lowest_id_of_a_tie(dtype: torch.dtype) -> None:
    tree = forest(([9, 6, 3], [-1, 0, 0]))
    logits = torch.zeros(3, VOCAB, dtype=dtype)
    logits[0, [3, 6]] = 2.0
    assert as_lists(accept(tree, logits, live(tree), views(GREEDY))) == ([[0, 2]], [1], [0])


def test_logits_are_not_changed() -> None:
    tree = forest(([9, 6, 3], [-1, 0, 0]))
    logits = torch.randn(3, VOCAB)
    before = logits.clone()
    sampled = SampledProposals(np.array([-1, 0, 0]), torch.full((1, VOCAB), 0.1))
    accept(tree, logits, live(tree), views(SAMPLING), method="rejection", sampled=sampled, want_logprobs=True)
    assert torch.equal(logits, before)


def test_positions_key_the_noise() -> None:
    """The token behind a draft is the one that ordinary decoding draws there, one position further on."""
    logits = torch.zeros(2, 200)
    params = SamplingParams(temperature=1.0, seed=11)
    roots = forest(([9], [-1]))
    at = [int(accept(roots, logits[:1], live(roots), views(params, 1, n)).bonus_token[0]) for n in range(1, 30)]
    assert len(set(at)) > 20
    for index in range(28):
        tree = forest(([9, at[index]], [-1, 0]))
        paths = accept(tree, logits, live(tree), views(params, 1, index + 1))
        assert as_lists(paths) == ([[0, 1]], [1], [at[index + 1]])


def test_logprobs_are_those_of_the_masked_distribution_before_temperature_and_truncation() -> None:
    tree = forest(([9, 2, 5], [-1, 0, 1]), ([9], [-1]))
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2))
    logits[:, 7:] = -INF
    logits[0, 2] = logits[1, 5] = 20.0
    params = SamplingParams(temperature=0.2, top_k=1)
    paths = accept(tree, logits, live(tree), views(params, 2), want_logprobs=True)
    expected = logits.double().log_softmax(-1)
    assert paths.accept_length.tolist() == [2, 0]
    assert paths.logprobs is not None
    assert paths.logprobs.dtype == np.float32
    bonus = paths.bonus_token
    first = [expected[0, 2], expected[1, 5], expected[2, bonus[0]]]
    assert paths.logprobs[0].tolist() == pytest.approx([float(x) for x in first], abs=1e-5)
    assert paths.logprobs[1, 0] == pytest.approx(float(expected[3, bonus[1]]), abs=1e-5)
    assert np.isnan(paths.logprobs[1, 1:]).all()


def test_arrays_that_do_not_fit_are_refused() -> None:
    tree = forest(([9, 4], [-1, 0]))
    good = SampledProposals(np.array([-1, 0]), torch.full((1, VOCAB), 0.1))
    logits, status, requests = torch.zeros(2, VOCAB), live(tree), views(SAMPLING)
    with pytest.raises(TreeError, match=r"1 trees with 2 nodes came with logits \(3, 10\)"):
        accept(tree, torch.zeros(3, VOCAB), status, requests)
    with pytest.raises(TreeError, match=r"status \(1,\)"):
        accept(tree, logits, status[:1], requests)
    with pytest.raises(TreeError, match="2 requests"):
        accept(tree, logits, status, views(SAMPLING, 2))
    for bad in (
        SampledProposals(good.row_of_node[:1], good.q),
        SampledProposals(np.array([-1, 1]), good.q),
        SampledProposals(good.row_of_node, torch.full((1, VOCAB + 1), 0.1)),
    ):
        with pytest.raises(TreeError, match="row_of_node"):
            accept(tree, logits, status, requests, method="rejection", sampled=bad)
    with pytest.raises(ConfigError, match="'typical'; expected 'target_only' or 'rejection'"):
        accept(tree, logits, status, requests, method=cast(AcceptMethod, "typical"))


def test_invariant_10_rejection_of_chosen_drafts_is_refused_at_configuration() -> None:
    with pytest.raises(ConfigError, match=r"'rejection' needs drafts that were drawn"):
        check_acceptance("rejection", Proposal.POINT)
    with pytest.raises(ConfigError, match="'typical'"):
        check_acceptance("typical", Proposal.SAMPLED)
    check_acceptance("rejection", Proposal.SAMPLED)
    check_acceptance("target_only", Proposal.SAMPLED)
    check_acceptance("target_only", Proposal.POINT)
