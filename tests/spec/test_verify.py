"""Verification on the device: `accept` is the reference of the torch reference, and both are the kernels'."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.results import committed_tokens
from specgrammar.spec import verify as verify_module
from specgrammar.spec.sampler import sample_tokens
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.spec.verify import verify_triton
from specgrammar.spec.verify_inputs import DeviceForest, DevicePaths, DeviceProposals, DeviceSampling
from specgrammar.spec.verify_torch import verify_torch
from specgrammar.testing.strategies import trees
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.build import VOCAB, forest, live, status_of, views, wants
from tests.spec.device import Scene, Verify, as_accept, forest_of, proposals_of, sampling_of
from tests.spec.harness import (
    LAWS,
    LENGTH,
    LEVEL,
    TOY,
    UNMASKED_Q,
    p_value,
    point_drafts,
    requests_of,
    sampled_drafts,
)
from tests.spec.toy import decode

INF = math.inf
PADDING, REJECTED, ENDED, FREE, LIVE = NodeStatus
SAMPLING = SamplingParams(temperature=1.0, seed=3)
COLUMNS = 6
TREES = trees(max_requests=3, max_nodes=8, vocab_size=COLUMNS - 1)
SEEDS = st.integers(0, 2**32)
BOTH = pytest.mark.parametrize("verify", [verify_torch, verify_triton], ids=["torch", "triton"])


def check_scene(verify: Verify, scene: Scene, extra: int) -> None:
    """The same paths as `accept`, under each method; arrays and parameters have more room than they need."""
    tree, status = scene.tree, torch.from_numpy(scene.status)
    wider = forest_of(tree, int(tree.depths().max(initial=0)) + extra)
    sampling = sampling_of(scene.requests)
    if extra:
        sampling = replace(sampling, max_top_k=sampling.max_top_k + extra, uses_top_p=True, uses_min_p=True)
    before = scene.logits.clone()
    runs: list[tuple[Scene, AcceptMethod, tuple[object, ...]]] = [
        (scene.greedy(), "target_only", ()),
        (scene, "target_only", (sampling,)),
        (scene, "rejection", (sampling, proposals_of(tree, scene.sampled))),
    ]
    for world, method, how in runs:
        found, expected = verify(wider, scene.logits, status, *how), world.accepted(method)
        check_shapes(found, tree.bs, wider.max_depth + 1)
        width = expected.accept_index.shape[1]
        assert found.accept_index[:, :width].tolist() == expected.accept_index.tolist(), method
        assert (found.accept_index[:, width:] == -1).all()
        assert found.accept_length.tolist() == expected.accept_length.tolist()
        assert found.predict.tolist() == expected.bonus_token.tolist(), method
        check_cache_plan(found, wider)
        if tree.bs:
            tokens, num_tokens = committed_tokens(tree, expected)
            committed = found.committed(wider.draft_tokens)
            assert committed.num_tokens.tolist() == num_tokens.tolist()
            assert committed.tokens[:, :width].tolist() == tokens.tolist()
            assert (committed.tokens[:, width:] == -1).all()
    assert torch.equal(scene.logits.nan_to_num(7.5), before.nan_to_num(7.5))


def check_shapes(found: DevicePaths, bs: int, width: int) -> None:
    assert {array.dtype for array in found} == {torch.int64}
    shapes = [tuple(array.shape) for array in found]
    assert shapes == [(bs, width), (bs,), (bs,), (bs, width), (bs, width)]


def check_cache_plan(found: DevicePaths, on: DeviceForest) -> None:
    """A cache that moves its slots as the plan says holds the path, in order, behind what it held."""
    for request, row in enumerate(found.accept_index.tolist()):
        written = list(range(int(on.cu_nodes[request]), int(on.cu_nodes[request + 1])))
        kept = {
            destination: written.index(source)
            for source, destination in zip(
                found.kv_source[request].tolist(), found.kv_destination[request].tolist(), strict=True
            )
            if source >= 0 or destination >= 0
        }
        assert [kept[place] for place in range(len(kept))] == [node for node in row if node >= 0]
        assert len(kept) == int(found.accept_length[request]) + 1


@settings(max_examples=150)
@given(TREES, SEEDS, st.integers(0, 2))
def test_invariant_11_the_reference_accepts_what_accept_does(tree: HostTree, seed: int, extra: int) -> None:
    check_scene(verify_torch, Scene.make(tree, seed, COLUMNS), extra)


@settings(max_examples=25)
@given(TREES, SEEDS, st.integers(0, 2), st.sampled_from([2, 4, 2048]))
def test_invariant_11_the_kernels_accept_what_accept_does(
    tree: HostTree, seed: int, extra: int, block: int
) -> None:
    """Also where a row is several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "_BLOCK", block)
        check_scene(verify_triton, Scene.make(tree, seed, COLUMNS), extra)


def test_the_scenes_have_what_matters() -> None:
    """Long paths, bonus tokens and none, rejections and acceptances of drawn children: all are common."""
    tree = forest(*[([5, 1, 2, 1, 3, 4], [-1, 0, 0, 1, 3, 1])] * 400)
    scene = Scene.make(tree, 0, COLUMNS)
    for world, method in ((scene.greedy(), "target_only"), (scene, "target_only"), (scene, "rejection")):
        paths = world.accepted(method)  # type: ignore[arg-type]  # a tuple's literals are strings to mypy
        assert (np.bincount(paths.accept_length, minlength=4) > 5).all()
        assert 20 < (paths.bonus_token < 0).sum() < 200


def with_room(on: DeviceForest, links: torch.Tensor) -> DeviceForest:
    """The same trees with more nodes behind them, which nobody may look at."""
    tokens, first, following = (
        torch.cat((part, links)) for part in (on.draft_tokens, on.retrieve_next_token, on.retrieve_next_sibling)
    )
    return DeviceForest(tokens, first, following, on.cu_nodes, on.max_depth)


@BOTH
def test_real_values(verify: Verify) -> None:
    """Equal siblings, an end, a dead root, padding, a request that offers nothing, and one without nodes."""
    tree = forest(
        ([9, 4, 4, 4, 7], [-1, 0, 0, 0, 2]),
        ([9, 4, 5], [-1, 0, 1]),
        ([9, 4], [-1, 0]),
        ([9, -1, 4], [-1, -1, 0]),
        ([9], [-1]),
    )
    status = status_of(
        LIVE, REJECTED, FREE, LIVE, LIVE, LIVE, ENDED, LIVE, REJECTED, LIVE, LIVE, PADDING, FREE, LIVE
    )
    logits = wants(4, 0, 7, 0, 1, 4, 5, 6, 4, 5, 4, 0, 8, 0)
    logits[13] = -INF
    # Room for one request and two nodes more.
    on = with_room(forest_of(tree), torch.tensor([3, 0]))
    on = replace(on, cu_nodes=torch.cat((on.cu_nodes, on.cu_nodes[-1:])))
    logits = torch.cat((logits, torch.zeros(2, VOCAB)))
    everywhere = torch.from_numpy(np.append(status, [LIVE, LIVE]).astype(np.int8))
    for params in (SamplingParams(), SAMPLING):
        found = verify(on, logits, everywhere, None if params.greedy else sampling_of(views(params, 6)))
        none = [-1, -1, -1]
        assert found.accept_index.tolist() == [
            [0, 2, 4],
            [0, 1, -1],
            [0, -1, -1],
            [0, 2, -1],
            [0, -1, -1],
            none,
        ]
        assert found.accept_length.tolist() == [2, 1, 0, 1, 0, 0]
        assert found.predict.tolist() == [1, -1, -1, 8, -1, -1]
        assert found.kv_source.tolist() == [
            [0, 2, 4],
            [5, 6, -1],
            [8, -1, -1],
            [10, 12, -1],
            [13, -1, -1],
            none,
        ]
        assert found.kv_destination[:2].tolist() == [[0, 1, 2], [0, 1, -1]]
        committed = found.committed(on.draft_tokens)
        assert committed.tokens.tolist() == [[4, 7, 1], [4, -1, -1], none, [4, 8, -1], none, none]
        assert committed.num_tokens.tolist() == [3, 1, 0, 2, 0, 0]


@BOTH
def test_a_path_is_cut_at_the_greatest_depth_and_its_token_is_the_bonus(verify: Verify) -> None:
    tree = forest(([9, 4, 5, 6], [-1, 0, 1, 2]))
    q = torch.zeros(1, VOCAB)
    q[0, 5] = 1.0
    proposals = DeviceProposals(torch.tensor([-1, -1, 0, -1]), q, 1)
    for how in ((), (sampling_of(views(SAMPLING)),), (sampling_of(views(SAMPLING)), proposals)):
        for depth, length, bonus in ((0, 0, 4), (1, 1, 5), (2, 2, 6), (3, 3, 7), (6, 3, 7)):
            found = verify(forest_of(tree, depth), wants(4, 5, 6, 7), torch.from_numpy(live(tree)), *how)
            assert found.accept_index.tolist() == [[*range(length + 1), *[-1] * (depth - length)]]
            assert (found.accept_length.tolist(), found.predict.tolist()) == ([length], [bonus])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tokens_are_those_of_ordinary_sampling(verify: Verify, dtype: torch.dtype) -> None:
    """Roots alone, rows of several blocks and kept apart in memory, every kind of parameters."""
    laws = [SamplingParams(), *LAWS, SamplingParams(temperature=50.0, top_p=0.999)]
    params = [replace(law, seed=2**62 + i) for i, law in enumerate(laws)]
    columns, positions = 5000, np.arange(len(params)) * 2**33 + 1
    logits = (3 * torch.randn(len(params), columns + 9, generator=torch.Generator().manual_seed(0))).to(dtype)
    logits = logits[:, :columns]
    logits[:, ::3] = -INF
    logits[0, [7, 4999]] = 20.0  # greedy: the lower id
    sampling = DeviceSampling.of(params, torch.from_numpy(positions))
    tree = HostTree.roots(range(len(params)))
    on = with_room(forest_of(tree), torch.tensor([0, 0]))
    more_logits, status = (
        torch.cat((logits, logits[:2])),
        torch.full((len(params) + 2,), LIVE, dtype=torch.int8),
    )
    found = verify(on, more_logits, status, sampling)
    assert found.predict.tolist() == sample_tokens(logits, params, positions).tolist()
    assert found.predict[0] == 7


@BOTH
def test_of_more_children_than_are_tried_the_first_are(verify: Verify) -> None:
    """What is not tried is as if it were not there, which its token has no say in: the law is kept."""
    q = torch.from_numpy(UNMASKED_Q)
    outcomes = set()
    for seed in range(12):
        requests = views(SamplingParams(temperature=1.0, seed=seed))
        tree = forest(([9, seed % 7, 2, 3], [-1, 0, 0, 0]))
        alone = forest(([9, seed % 7, -1, -1], [-1, 0, -1, -1]))
        logits = torch.from_numpy(TOY.target[:4].copy())
        rows = np.array([-1, 1, 2, 3])
        proposals = DeviceProposals(torch.from_numpy(rows), q, 1)
        found = verify(forest_of(tree), logits, torch.from_numpy(live(tree)), sampling_of(requests), proposals)
        scene = Scene(alone, logits, live(alone), requests, SampledProposals(rows, q))
        expected = scene.accepted("rejection")
        assert found.accept_length.tolist() == expected.accept_length.tolist()
        assert found.predict.tolist() == expected.bonus_token.tolist()
        outcomes.add(int(found.accept_length[0]))
    assert outcomes == {0, 1}


@BOTH
def test_several_candidates_with_residuals_in_between(verify: Verify) -> None:
    """p = (.3, .36, .34), q = (.6, .3, .1): close calls for every candidate, as `test_rejection` has them."""
    num, q = 60, np.array([0.6, 0.3, 0.1])
    children = np.random.default_rng(0).choice(3, (num, 3), p=q)
    tokens = np.concatenate((np.full((num, 1), 9), children), axis=1)
    parents = np.tile([-1, 0, 0, 0], num)
    tree = HostTree.from_parents(np.arange(num + 1) * 4, tokens.reshape(-1), parents)
    logits = torch.tensor([0.3, 0.36, 0.34]).log().expand(4 * num, -1)
    requests = [view for seed in range(num) for view in views(SamplingParams(temperature=1.0, seed=seed))]
    scene = Scene(
        tree, logits, live(tree), requests, SampledProposals(parents, torch.from_numpy(q).float()[None])
    )
    expected = scene.accepted("rejection")
    found = verify(
        forest_of(tree),
        logits,
        torch.from_numpy(scene.status),
        sampling_of(requests),
        proposals_of(tree, scene.sampled),
    )
    assert found.accept_index.tolist() == expected.accept_index.tolist()
    assert found.predict.tolist() == expected.bonus_token.tolist()
    assert (np.bincount(expected.accept_index[:, 1] + 1, minlength=5)[[0, 2, 3]] > 3).all()


@BOTH
def test_a_broken_q_lets_no_illegal_token_through(verify: Verify) -> None:
    """NaN in q, and a residual that rounding empties: the token comes from what was there before."""
    logits = torch.full((3, VOCAB), -INF)
    logits[:, :2] = 0.0
    for q_row in (torch.full((1, VOCAB), math.nan), logits[:1].softmax(-1)):
        tree = forest(([9, 4, 5], [-1, 0, 0]))
        status = torch.from_numpy(status_of(LIVE, REJECTED, REJECTED))
        proposals = DeviceProposals(torch.tensor([-1, 0, 0]), q_row, 2)
        found = verify(forest_of(tree), logits, status, sampling_of(views(SAMPLING)), proposals)
        assert found.accept_length.tolist() == [0]
        assert found.predict.tolist()[0] in (0, 1)


@pytest.mark.parametrize(("method", "law"), [("target_only", LAWS[5]), ("rejection", LAWS[0])], ids=str)
def test_invariant_11_device_verification_has_the_law_of_ordinary_decoding(
    method: AcceptMethod, law: SamplingParams
) -> None:
    """With the reference, which the kernels equal; see `harness` for sample size and power."""
    propose = point_drafts(1) if method == "target_only" else sampled_drafts(2, UNMASKED_Q)
    outputs = decode(TOY, requests_of(law), LENGTH, propose, method=method, accept_with=as_accept(verify_torch))
    assert 1 < outputs.num_steps.mean() < LENGTH
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL
