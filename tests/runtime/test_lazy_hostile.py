"""Lazy masking against what is made to break it: odd logits, odd trees, raising parts, lost steps.

Eager masking on the host says what is right. Drafts come as a hash of the history, so that every tree has
illegal, repeated, padded and stop tokens at any place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarBackend
from specgrammar.protocols.staging import Device
from specgrammar.runtime import lazy_walk
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.sampling import MaskPolicyChoice, SamplingParams
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toy_target import ToyAdapter, join_in_order
from tests.runtime.hostile import (
    BACKEND,
    SIZE,
    SPECS,
    VOCABULARY,
    BreakingBackend,
    HostileTarget,
    LostStepError,
    Trees,
    World,
)
from tests.toys import BACKEND_NAMES


def engine_of(
    world: World, policy: MaskPolicyChoice, device: Device, backend: GrammarBackend, **target: Any
) -> Engine:
    adapter = ToyAdapter(HostileTarget(world=world, device=device, **target), VOCABULARY, device)
    config = Config(algorithm="none", mask_policy=policy, max_batch_size=4)
    return Engine(adapter, backend, Trees(world), config, agree_joins=join_in_order)


def outputs_of(engine: Engine, requests: Sequence[Request]) -> dict[str, RequestOutput]:
    """All outputs by id; steps that were lost are made again; no bitmask slot stays held."""
    for request in requests:
        engine.add(request)
    outputs: list[RequestOutput] = []
    while engine.has_work:
        try:
            outputs += engine.step()
        except LostStepError:
            continue
        finally:
            masking = engine._parts.masking
            if isinstance(masking, LazyMasking):
                allocator: Any = masking.parts.allocator
                assert not any(slot.held for slot in allocator._slots)
    return {output.request_id: output for output in outputs}


def right_of(world: World, requests: Sequence[Request]) -> dict[str, RequestOutput]:
    return outputs_of(engine_of(world, "eager", InlineDevice(), BACKEND["llguidance"]), requests)


def check_same(ours: RequestOutput, right: RequestOutput) -> None:
    assert (ours.token_ids, ours.text, ours.finish_reason) == (right.token_ids, right.text, right.finish_reason)
    assert (ours.logprobs is None) == (right.logprobs is None)
    if ours.logprobs is not None and right.logprobs is not None:
        np.testing.assert_allclose(ours.logprobs, right.logprobs, atol=1e-5)


def lagging(shares_host_memory: bool) -> Callable[[np.random.Generator], Device]:
    return lambda rng: DelayedDevice(
        lambda num_pending: int(rng.integers(num_pending + 1)), shares_host_memory=shares_host_memory
    )


DEVICES: dict[str, Callable[[np.random.Generator], Device]] = {
    "cpu": lambda _: InlineDevice(),
    "cpu-stream": lambda _: CpuStream(),
    "late": lagging(shares_host_memory=False),
    "late, shared": lagging(shares_host_memory=True),
}

worlds = st.builds(
    World,
    seed=st.integers(0, 10**6),
    columns=st.sampled_from([SIZE, SIZE + 5, 64, 12]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    coarse=st.sampled_from([0.0, 1.0, 3.0]),
    bad=st.sampled_from([0.0, 0.05, 0.3]),
    device_made=st.booleans(),
)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 1e-38, 0.5, 1.0, 3.0, 1e38]),
    top_k=st.sampled_from([0, 0, 0, 2]),
    top_p=st.sampled_from([1.0, 1.0, 1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.0, 0.0, 0.2]),
    seed=st.integers(0, 9),
)


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        grammar = draw(st.sampled_from(SPECS))
        made.append(
            Request(
                str(number),
                tuple(draw(st.lists(st.integers(0, 15), min_size=1, max_size=4))),
                grammar,
                draw(samplings),
                draw(st.integers(1, 14)),
                draw(st.sampled_from([(), (), ("bc",), ("1",)])),
                stop_token_ids=draw(st.sampled_from([(), (), (4,), (12, 3), (17,)])),
                grammar_start=draw(st.sampled_from([(), (), (0,), (2, 1)])) if grammar else (),
                logprobs=draw(st.integers(0, 3)) == 0,
            )
        )
    return made


@pytest.mark.parametrize("backend", BACKEND_NAMES)
@pytest.mark.parametrize("device", DEVICES)
@given(world=worlds, requests=request_lists(), num_best=st.sampled_from([1, 2, 4, 96]))
@settings(max_examples=25, deadline=None)
def test_whatever_the_logits_and_trees(
    backend: str, device: str, world: World, requests: list[Request], num_best: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_walk, "NUM_BEST", num_best)
        made = DEVICES[device](world.rng())
        ours = outputs_of(engine_of(world, "lazy", made, BACKEND[backend]), requests)
    for request_id, right in right_of(world, requests).items():
        check_same(ours[request_id], right)


@pytest.mark.parametrize("device", DEVICES)
@given(
    world=worlds,
    requests=request_lists(),
    breaks=st.lists(
        st.dictionaries(st.sampled_from(["accept", "fill", "rollback"]), st.integers(1, 4), max_size=1),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=25, deadline=None)
def test_a_backend_that_raises_ends_its_own_request(
    device: str, world: World, requests: list[Request], breaks: list[dict[str, int]]
) -> None:
    """All others write what they write with whole neighbours; the broken one nothing else before it ends."""
    backend = BreakingBackend(BACKEND["llguidance"], breaks)
    ours = outputs_of(engine_of(world, "lazy", DEVICES[device](world.rng()), backend), requests)
    right = right_of(world, requests)
    num_grammars = 0
    for request in requests:
        mine, theirs = ours[request.request_id], right[request.request_id]
        broken = request.grammar is not None and breaks[num_grammars % len(breaks)]
        num_grammars += request.grammar is not None
        if broken and mine.finish_reason == "error":
            assert mine.token_ids == theirs.token_ids[: len(mine.token_ids)]
        else:
            check_same(mine, theirs)


@pytest.mark.parametrize("policy", ["lazy", "auto"])
@pytest.mark.parametrize("loses_in", ["wait", "commit"])
@pytest.mark.parametrize("device", DEVICES)
@given(world=worlds, requests=request_lists(), lost=st.sets(st.integers(1, 8), min_size=1))
@settings(max_examples=12, deadline=None)
def test_a_lost_step_is_made_again(
    device: str, loses_in: str, policy: MaskPolicyChoice, world: World, requests: list[Request], lost: set[int]
) -> None:
    """The target raised behind the walk, or before it: the grammars stand where the histories do."""
    made = DEVICES[device](world.rng())
    engine = engine_of(world, policy, made, BACKEND["llguidance"], lost=lost, loses_in=loses_in)
    ours = outputs_of(engine, requests)
    for request_id, right in right_of(world, requests).items():
        check_same(ours[request_id], right)
