"""Verification on the device: `accept` is the reference of the torch reference, and both are the kernels'."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specgrammar.errors import ConfigError, TreeError
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.results import committed_tokens
from specgrammar.spec import verify as verify_module
from specgrammar.spec.noise import Stream, gumbel, mix64, noise_keys, uniform
from specgrammar.spec.sampler import sample_tokens, truncate_logits, truncate_probs
from specgrammar.spec.sampling import AcceptMethod, SamplingParams
from specgrammar.spec.sampling_table import SamplingTable
from specgrammar.spec.verify import verify_triton
from specgrammar.spec.verify_inputs import DeviceForest, DevicePaths, DeviceProposals, DeviceSampling
from specgrammar.spec.verify_torch import event_keys, verify_torch
from specgrammar.spec.verify_truncate import scaled_logits, target_probs
from specgrammar.testing.strategies import trees
from specgrammar.trees import jit
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
from tests.spec.noise_on_device import noise_of_words
from tests.spec.test_sampler import PARAMS, ROW
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
    assert torch.equal(scene.logits, before) or scene.logits.isnan().any()


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
    on = forest_of(tree)
    # Room for one request and two nodes more, with anything in them.
    more = torch.tensor([3, 0])
    on = DeviceForest(
        torch.cat((on.draft_tokens, more)),
        torch.cat((on.retrieve_next_token, more)),
        torch.cat((on.retrieve_next_sibling, more)),
        torch.cat((on.cu_nodes, on.cu_nodes[-1:])),
        on.max_depth,
    )
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
    found = verify(forest_of(tree), logits, torch.from_numpy(live(tree)), sampling)
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


@pytest.mark.parametrize("law", [LAWS[0], LAWS[5]], ids=str)
@pytest.mark.parametrize("method", ["target_only", "rejection"])
def test_invariant_11_device_verification_has_the_law_of_ordinary_decoding(
    law: SamplingParams, method: AcceptMethod
) -> None:
    """With the reference, which the kernels equal; see `harness` for sample size and power."""
    propose = point_drafts(1) if method == "target_only" else sampled_drafts(2, UNMASKED_Q)
    outputs = decode(TOY, requests_of(law), LENGTH, propose, method=method, accept_with=as_accept(verify_torch))
    assert 1 < outputs.num_steps.mean() < LENGTH
    assert p_value(outputs.tokens, TOY.law(law, LENGTH)) > LEVEL


@given(st.lists(st.tuples(ROW, PARAMS), min_size=1, max_size=5))
@example([([0.0, 1.0, 2.0], SamplingParams(temperature=1e-300))])
def test_truncation_gives_the_bits_of_the_sampler(rows: list[tuple[list[float], SamplingParams]]) -> None:
    params = [law for _, law in rows]
    logits = torch.full((len(rows), 12), -INF)
    for row, (values, _) in zip(logits, rows, strict=True):
        row[: len(values)] = torch.tensor(values)
    sampling = DeviceSampling.of(params, torch.ones(len(rows), dtype=torch.int64))
    request, drawn = torch.arange(len(rows)), [i for i, law in enumerate(params) if not law.greedy]
    scaled, probs = scaled_logits(logits, request, sampling), target_probs(logits, request, sampling)
    table = SamplingTable.of([params[i] for i in drawn])
    assert torch.equal(scaled[drawn], truncate_logits(logits[drawn], table))
    assert torch.equal(probs[drawn], truncate_probs(logits, params)[drawn])
    greedy = [i for i, law in enumerate(params) if law.greedy]
    assert torch.equal(scaled[greedy], logits[greedy].double())


def test_truncation_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [replace(law, seed=0) for law in LAWS]
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(4))
    sampling = DeviceSampling.of(params, torch.ones(6, dtype=torch.int64))
    whole = target_probs(logits, torch.arange(6), sampling)
    monkeypatch.setattr("specgrammar.spec.verify_truncate._CELLS", 70)
    assert torch.equal(target_probs(logits, torch.arange(6), sampling), whole)


WORDS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=30)
@given(WORDS, st.integers(0, 2**62), st.sampled_from(list(Stream)), st.integers(0, 2**31), WORDS)
def test_noise_in_kernels_is_that_of_the_host(
    seed: int, position: int, stream: Stream, lane: int, bits: int
) -> None:
    seeds, positions = torch.tensor([seed]), torch.tensor([position])
    keys = noise_keys(seeds.numpy(), positions.numpy(), stream, lane)
    mixed, key, number, noise = noise_of_words(bits, seed, int(stream) * 2**32 + lane, position)
    assert mixed == int(mix64(torch.tensor([bits])))
    assert key == keys[0] == int(event_keys(seeds, positions, stream, lane))
    assert number == uniform(np.array([bits]))[0]
    expected = float(gumbel(torch.from_numpy(keys), torch.tensor([position])))
    assert noise == pytest.approx(expected, rel=1e-13, abs=1e-13)


class NoKernel:
    """Launches nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(type(size) is int for size in grid)
        return lambda *_, **__: None


def test_nothing_is_read_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors that have no values every read raises, and every shape that depends on one.

    The kernels are left out: what a launch reads is the device's.
    """
    tree = forest(([9, 4, 5, 6], [-1, 0, 0, 1]), ([9, 1], [-1, 0]))
    scene = Scene.make(tree, 5, VOCAB)
    params = [replace(law, seed=1) for law in (LAWS[5], SamplingParams())]
    for kernel in ("link_parents", "positions", "walk", "draw", "try_candidates", "draw_residual"):
        monkeypatch.setattr(verify_module, f"{kernel}_kernel", NoKernel())
    with FakeTensorMode() as mode:

        def fake(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return mode.from_tensor(value)
            return replace(value, **{k: fake(v) for k, v in vars(value).items() if isinstance(v, torch.Tensor)})

        on, logits, status = fake(forest_of(tree)), fake(scene.logits), fake(torch.from_numpy(scene.status))
        with pytest.raises(DataDependentOutputException):
            logits[0, 0].item()
        sampling = fake(DeviceSampling.of(params, torch.tensor([3, 4])))
        for how in ((), (sampling,), (sampling, fake(proposals_of(tree, scene.sampled)))):
            for verify in (verify_torch, verify_triton):
                found = verify(on, logits, status, *how)
                check_shapes(found, 2, 3)
                found.committed(on.draft_tokens)


def wrong(**change: object) -> dict[str, object]:
    """Arguments of a step with two nodes, one of them changed."""
    tree = forest(([9, 4], [-1, 0]))
    good: dict[str, object] = {
        "forest": forest_of(tree),
        "logits": torch.zeros(2, VOCAB),
        "status": torch.from_numpy(live(tree)),
        "sampling": sampling_of(views(SAMPLING)),
        "sampled": DeviceProposals(torch.tensor([-1, 0]), torch.full((1, VOCAB), 0.1), 1),
    }
    for name, value in change.items():
        for part in ("forest", "sampling", "sampled"):
            if hasattr(good[part], name):
                good[part] = replace(good[part], **{name: value})  # type: ignore[type-var]  # all are dataclasses
                break
        else:
            good[name] = value
    return good


@BOTH
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": torch.zeros(3, VOCAB)}, r"logits: .*\[3, 10\].*expected \[2, at least 1\]"),
        ({"logits": torch.zeros(2, 0)}, "at least 1"),
        ({"logits": torch.zeros(VOCAB, 2).T}, "contiguous rows"),
        ({"logits": torch.zeros(2, VOCAB, dtype=torch.float64)}, "logits: torch.float64"),
        ({"logits": torch.zeros(2)}, "logits"),
        ({"status": torch.zeros(2, dtype=torch.int64)}, r"status: .*contiguous torch.int8 \[2\]"),
        ({"status": torch.zeros(4, dtype=torch.int8)[::2]}, "status: .*contiguous"),
        ({"status": torch.zeros(2, dtype=torch.int8, device="meta")}, "status is on meta"),
        ({"retrieve_next_token": torch.zeros(3, dtype=torch.int64)}, "retrieve_next_token"),
        ({"cu_nodes": torch.zeros(0, dtype=torch.int64)}, "cu_nodes has 0 entries for 2 nodes"),
        ({"cu_nodes": torch.zeros(2, dtype=torch.int32)}, "cu_nodes: torch.int32"),
        ({"max_depth": -1}, "max_depth is -1"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, r"seed: .*\[1\]"),
        ({"temperature": torch.zeros(1)}, "temperature: torch.float32"),
        ({"row_of_node": torch.zeros(1, dtype=torch.int64)}, "row_of_node"),
        ({"q": torch.zeros(1, VOCAB + 1)}, r"q: .*at most 10"),
        ({"q": torch.zeros(1, VOCAB, dtype=torch.float64)}, "q: torch.float64"),
        ({"q": torch.zeros(1, VOCAB, device="meta")}, "q is on meta"),
        ({"max_children": 0}, "max_children is 0"),
        ({"sampling": None}, "without sampling parameters"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(verify: Verify, change: dict[str, object], words: str) -> None:
    verify(**wrong())
    with pytest.raises(TreeError, match=words):
        verify(**wrong(**change))


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "HAS_TRITON", False)
    with pytest.raises(ConfigError, match="verifying trees on the device needs triton: pip install triton"):
        verify_triton(**wrong())  # type: ignore[arg-type]  # one dict for all


# What the interpreter cannot show: that the files import without triton, that CPU tensors are refused where the
# kernels are compiled, and that the compiler takes the kernels (for a device that need not be there).
_OUTSIDE = {
    "without triton": """
import sys
sys.modules["triton"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find_spec(name, *rest)
import specgrammar.spec.verify
""",
    "compiled": """
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from specgrammar.errors import TreeError
from specgrammar.spec import draw_kernels, walk_kernels
from specgrammar.spec.verify import verify_triton
from specgrammar.spec.verify_inputs import DeviceForest
one = torch.zeros(1, dtype=torch.int64)
try:
    forest = DeviceForest(one, one - 1, one - 1, torch.arange(2), 0)
    verify_triton(forest, torch.zeros(1, 3), one.to(torch.int8))
except TreeError as error:
    assert "logits are on the CPU" in str(error), error
else:
    raise AssertionError("ran on a CPU")

TYPES = {"status_ptr": "*i8", "probs_ptr": "*fp32", "q_ptr": "*fp32"}
TYPES |= dict.fromkeys(("scores_ptr", "masses_ptr", "temperature_ptr"), "*fp64")

def check(kernel, logits=None, **constants):
    types = {name: TYPES.get(name, "*i64" if name.endswith("_ptr") else "i32") for name in kernel.arg_names}
    if logits is not None:
        types["logits_ptr"] = logits
    types |= dict.fromkeys(constants, "constexpr")
    compiled = compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm

for ones in ({}, {"bs": 1, "num_nodes": 1}):  # the launcher's numbers become constants where they are 1
    check(walk_kernels.link_parents_kernel, bs_block=64, block=64, **ones)
check(walk_kernels.positions_kernel, block=64)
check(walk_kernels.walk_kernel, blocks=64, width_block=8)
check(walk_kernels.walk_kernel, blocks=1, width_block=1, chosen_ptr=None, num_blocks=1, max_depth=1)
for logits in ("*fp32", "*bf16", "*fp16", "*fp64"):
    check(draw_kernels.draw_kernel, logits, is_scaled=logits == "*fp64", block=2048)
greedy = dict.fromkeys(("chosen_ptr", "request_ptr", "position_ptr", "temperature_ptr", "seed_ptr"))
check(draw_kernels.draw_kernel, "*bf16", is_scaled=False, block=2048, **greedy)
for lanes, ones in ((1, {"max_children": 1}), (4, {})):
    check(draw_kernels.try_candidates_kernel, lanes=lanes, block=2048, **ones)
    check(draw_kernels.draw_residual_kernel, lanes=lanes, block=2048)
""",
}


@pytest.mark.parametrize("code", _OUTSIDE.values(), ids=_OUTSIDE.keys())
def test_outside_the_interpreter(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
