"""The checks of targets: they reject what is broken, and pass ours, on every kind of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pytest

from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.staging import Device
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.checks.base import Check
from specgrammar.testing.checks.target import TARGET_CHECKS
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.toy_target import ToyAdapter
from specgrammar_transformers import TransformersTarget
from tests.conformance.broken.targets import BROKEN_TARGETS, HONEST
from tests.conformance.cases import Broken
from tests.transformers_adapter.tiny import VOCAB, tiny_model


@dataclass
class TinyAdapter:
    """A random transformers model, whose ids are letters."""

    target: TransformersTarget
    device: Device
    vocabulary: Vocabulary

    def load_drafter(self, name: str) -> CausalDrafter:
        raise AssertionError(name)


@cache  # as the author of a large model would
def tiny(kind: str, attention: str, make_device: Callable[[], Device]) -> TinyAdapter:
    device = make_device()
    letters = tuple(bytes([32 + i]) for i in range(VOCAB))
    vocabulary = Vocabulary(letters, stop_ids=(1,), special_ids=frozenset({0, 1}))
    return TinyAdapter(TransformersTarget(tiny_model(kind, attention), 3, device), device, vocabulary)


def late(make_device: Callable[[], Device]) -> LateAdapter:
    device = make_device()
    return LateAdapter(device, LateTarget(device))


ADAPTERS: dict[str, Callable[[], EngineAdapter]] = {
    "toy": ToyAdapter,
    "late, inline": partial(late, InlineDevice),
    "late, on a CPU stream": partial(late, CpuStream),
    "late, delayed": partial(late, DelayedDevice),
    "llama, inline": partial(tiny, "llama", "sdpa", InlineDevice),
    "llama, on a CPU stream": partial(tiny, "llama", "sdpa", CpuStream),
    "llama, delayed": partial(tiny, "llama", "sdpa", DelayedDevice),
    "gpt2": partial(tiny, "gpt2", "eager", InlineDevice),
    "gpt_neox": partial(tiny, "gpt_neox", "sdpa", InlineDevice),
    **HONEST,
}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("check", TARGET_CHECKS, ids=lambda check: check.__name__)
def test_our_targets_keep_the_contract(check: Check, adapter: str) -> None:
    check(ADAPTERS[adapter])


@pytest.mark.parametrize("broken", BROKEN_TARGETS, ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
