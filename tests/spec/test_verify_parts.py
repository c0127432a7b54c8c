"""What device verification is made of: truncation and noise with the host's bits, and its launches."""

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
from specgrammar.spec import verify as verify_module
from specgrammar.spec.noise import Stream, gumbel, mix64, noise_keys, uniform
from specgrammar.spec.sampler import truncate_logits, truncate_probs
from specgrammar.spec.sampling import SamplingParams
from specgrammar.spec.sampling_table import SamplingTable
from specgrammar.spec.verify import verify_triton
from specgrammar.spec.verify_inputs import DeviceProposals, DeviceSampling
from specgrammar.spec.verify_torch import event_keys, verify_torch
from specgrammar.spec.verify_truncate import scaled_logits, target_probs
from specgrammar.trees import jit
from tests.spec.build import VOCAB, forest, live, views
from tests.spec.device import Scene, Verify, forest_of, proposals_of, sampling_of
from tests.spec.harness import LAWS
from tests.spec.noise_on_device import noise_of_words
from tests.spec.test_sampler import PARAMS, ROW

INF = math.inf
SAMPLING = SamplingParams(temperature=1.0, seed=3)
BOTH = pytest.mark.parametrize("verify", [verify_torch, verify_triton], ids=["torch", "triton"])


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
                assert [tuple(array.shape) for array in found] == [(2, 3), (2,), (2,), (2, 3), (2, 3)]
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
check(walk_kernels.walk_kernel, blocks=64, width_block=8, chosen_ptr=None)
check(walk_kernels.walk_kernel, blocks=1, width_block=1, num_blocks=1, max_depth=1)
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
