"""Acceptance by the kernels, as the step calls it: in every detail what `accept` finds on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.config import Config
from specgrammar.errors import ConfigError, TreeError
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.spec import accept as accept_module
from specgrammar.spec.accept import accept
from specgrammar.spec.accept_on_device import accept_on_device, upload
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.testing.strategies import trees
from specgrammar.testing.toy_target import ToyAdapter, join_in_order
from specgrammar.trees import jit
from specgrammar.trees.tree import HostTree, SampledProposals
from tests.spec.build import VOCAB, forest, live, status_of, views, wants
from tests.spec.device import Scene

COLUMNS = 6
TREES = trees(max_requests=3, max_nodes=8, vocab_size=COLUMNS - 1)
LIVE, ENDED, REJECTED = NodeStatus.LIVE, NodeStatus.ENDED, NodeStatus.REJECTED


def on_device(scene: Scene, method: AcceptMethod) -> AcceptedPaths:
    """What the kernels say of a scene."""
    sampled = scene.sampled if method == "rejection" else None
    return accept_on_device(scene.tree, scene.logits, scene.status, scene.requests, sampled)


def assert_equal(found: AcceptedPaths, right: AcceptedPaths) -> None:
    """Equal values, shapes and dtypes; arrays that their owner may write to."""
    for name in ("accept_index", "accept_length", "bonus_token"):
        ours, theirs = getattr(found, name), getattr(right, name)
        assert (ours.dtype, ours.shape, ours.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist()), name
        assert ours.flags.c_contiguous
        assert ours.flags.owndata
    assert found.logprobs is right.logprobs is None
    assert found.nodes_to_keep().tolist() == right.nodes_to_keep().tolist()


@settings(max_examples=40)
@given(TREES, st.integers(0, 2**32))
def test_invariant_11_paths_are_those_of_the_host(tree: HostTree, seed: int) -> None:
    """Broken rows, dead roots, ends, padding, all parameters, greedy among sampled: see `Scene.make`."""
    scene = Scene.make(tree, seed, COLUMNS)
    assert_equal(on_device(scene.greedy(), "target_only"), scene.greedy().accepted("target_only"))
    methods: tuple[AcceptMethod, ...] = ("target_only", "rejection")
    for method in methods:
        assert_equal(on_device(scene, method), scene.accepted(method))


def test_a_large_batch_of_deep_paths() -> None:
    tree = forest(*[([5, 1, 2, 1, 3, 4], [-1, 0, 0, 1, 3, 1])] * 60)
    scene = Scene.make(tree, 0, COLUMNS)
    methods: tuple[AcceptMethod, ...] = ("target_only", "rejection")
    for method in methods:
        right = scene.accepted(method)
        assert right.accept_index.shape == (60, 4)
        assert_equal(on_device(scene, method), right)


def test_arrays_are_as_wide_as_the_longest_path() -> None:
    """Not as the deepest tree: an end, a dead child, and a row that offers nothing stop these."""
    tree = forest(([9, 4, 5, 6], [-1, 0, 1, 2]), ([9, 4, 5], [-1, 0, 1]), ([9, 4], [-1, 0]))
    status = status_of(LIVE, LIVE, REJECTED, LIVE, LIVE, ENDED, LIVE, LIVE, LIVE)
    logits = wants(4, 5, 6, 0, 4, 5, 0, 4, 0)
    logits[8] = -torch.inf
    for params in (SamplingParams(), SamplingParams(1.0, seed=3)):
        found = accept_on_device(tree, logits, status, views(params, 3), None)
        assert found.accept_index.tolist() == [[0, 1], [0, 1], [0, 1]]
        assert found.accept_length.tolist() == [1, 1, 1]
        assert found.bonus_token.tolist() == [5, -1, -1]


def test_all_drawn_children_of_a_node_are_tried() -> None:
    """p is in the last of five children alone; the others, which q likes, are rejected before it."""
    tree = forest(([9, 1, 2, 3, 4, 5], [-1, 0, 0, 0, 0, 0]))
    q = torch.full((1, VOCAB), 0.1)
    sampled = SampledProposals(np.array([-1, 0, 0, 0, 0, 0]), q)
    logits = wants(5, 0, 0, 0, 0, 7)
    found = accept_on_device(tree, logits, live(tree), views(SamplingParams(1.0, seed=1)), sampled)
    assert (found.accept_index.tolist(), found.bonus_token.tolist()) == ([[0, 5]], [7])


def test_what_was_chosen_is_target_only_where_nothing_was_drawn() -> None:
    tree = forest(([9, 4], [-1, 0]))
    sampled = SampledProposals(np.array([-1, -1]), torch.empty(0, VOCAB))
    found = accept_on_device(tree, wants(4, 7), live(tree), views(SamplingParams(1.0)), sampled)
    assert (found.accept_index.tolist(), found.bonus_token.tolist()) == ([[0, 1]], [7])


# -- the copy ------------------------------------------------------------------------------------------------


def test_one_copy_brings_everything_where_kernels_read_it() -> None:
    """Odd sizes, other strides and memory that is not to be written: all begins at 16 bytes."""
    fixed = np.arange(5)
    fixed.flags.writeable = False
    arrays: list[NDArray[np.generic]] = [
        np.array([1, -2, 3], np.int8),
        np.empty(0, np.int64),
        np.array([0.5, -np.inf]),
        np.arange(6)[::2],
        fixed,
    ]
    there = upload(arrays, torch.device("cpu"))
    for tensor, array in zip(there, arrays, strict=True):
        assert (tensor.tolist(), tensor.numpy().dtype) == (array.tolist(), array.dtype)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1


# -- who is asked --------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nodes of each step that the kernels verified; the CPU stands in for an accelerator."""
    seen: list[int] = []
    real: Callable[..., AcceptedPaths] = accept_on_device

    def spy(tree: HostTree, *rest: Any) -> AcceptedPaths:
        seen.append(tree.num_nodes)
        return real(tree, *rest)

    monkeypatch.setattr("specgrammar.spec.accept_on_device.accept_on_device", spy)
    monkeypatch.setattr(accept_module, "ACCELERATORS", ("cpu",))
    return seen


def test_the_step_asks_the_kernels_where_they_can_answer(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = forest(([9, 4], [-1, 0]))
    logits, asked = wants(4, 7), (live(tree), views(SamplingParams(1.0)))
    assert accept(tree, logits, *asked).bonus_token.tolist() == [7]
    assert calls == [2]
    with_logprobs = accept(tree, logits, *asked, want_logprobs=True)
    assert with_logprobs.logprobs is not None
    for other in (logits.double(), logits.T.contiguous().T):
        assert accept(tree, other, *asked).bonus_token.tolist() == [7]
    monkeypatch.setattr(jit, "HAS_TRITON", False)
    assert accept(tree, logits, *asked).bonus_token.tolist() == [7]
    assert calls == [2], "what the kernels do not do is done by the walk"


def test_the_host_walks_its_own_logits(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    tree = forest(([9, 4], [-1, 0]))
    accept(tree, wants(4, 7), live(tree), views(SamplingParams(1.0)))
    assert calls == []


def test_what_does_not_fit_is_refused_before_the_kernels_read_it(calls: list[int]) -> None:
    tree = forest(([9, 4, 5], [-1, 0, 0]))
    requests = views(SamplingParams(1.0))
    with pytest.raises(TreeError, match="expected a row and a status per node"):
        accept(tree, wants(4, 7), live(tree), requests)
    sampled = SampledProposals(np.array([-1, 0, -1]), torch.full((1, VOCAB), 0.1))
    with pytest.raises(ConfigError, match="one was drawn from a stated distribution and the other not"):
        accept(tree, wants(4, 7, 7), live(tree), requests, method="rejection", sampled=sampled)
    assert calls == []


@pytest.mark.parametrize("algorithm", ["none", "ngram", "forced+ngram"])
def test_invariant_11_an_engine_on_the_kernels_has_the_tokens_of_the_host(
    calls: list[int], monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    spec = GrammarSpec.regex("(ab|bc|c){3,12}(1|2)*")
    laws = [SamplingParams(), SamplingParams(2.0), SamplingParams(3.0, 3, 0.9, 0.05)]
    requests = [Request(str(n), (0, 1) * 3, spec, replace(laws[n % 3], seed=n), 12) for n in range(6)]

    def told() -> dict[str, tuple[int, ...]]:
        config = Config(algorithm=algorithm, max_batch_size=3, mask_policy="eager")
        engine = Engine.build(config, ToyAdapter(), agree_joins=join_in_order)
        return {output.request_id: output.token_ids for output in engine.generate(requests)}

    found, num_steps = told(), len(calls)
    assert num_steps > 3
    monkeypatch.undo()
    assert told() == found
    assert len(calls) == num_steps
