"""An engine writes the same text whether its forwards run inline, beside the host, or late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device, Launched
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toy_target import ToyAdapter, ToyTarget, join_in_order
from specgrammar.trees.tree import DraftTree

REQUESTS = [
    Request(request_id=str(i), prompt_tokens=(0, 1, 0, 1), grammar=grammar, max_new_tokens=16 + 4 * i)
    for i, grammar in enumerate((GrammarSpec.regex("(ab)+c"), None, GrammarSpec.regex("[abc12]*")))
]


@dataclass
class LaunchingTarget(ToyTarget):
    """The toy target with its forwards on a device."""

    device: Device = field(default_factory=InlineDevice)

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> Launched[torch.Tensor]:  # type: ignore[override]
        """Launch the forward."""
        forward = super().verify
        return self.device.launch(lambda: forward(batch, tree).logits, "forward")


def texts(device: Device, algorithm: str) -> dict[str, tuple[int, ...]]:
    adapter = ToyAdapter(LaunchingTarget(device=device), device=device)
    engine = Engine.build(Config(algorithm=algorithm, max_batch_size=2), adapter, agree_joins=join_in_order)
    return {output.request_id: output.token_ids for output in engine.generate(REQUESTS)}


@pytest.mark.parametrize("algorithm", ["none", "ngram", "chain"])
@pytest.mark.parametrize("make", [CpuStream, DelayedDevice])
def test_streams_change_nothing(make: Callable[[], Device], algorithm: str) -> None:
    assert texts(make(), algorithm) == texts(InlineDevice(), algorithm)


@given(st.data(), st.sampled_from(["none", "ngram"]), st.booleans())
@settings(max_examples=30)
def test_no_schedule_changes_anything(data: st.DataObject, algorithm: str, shares_host_memory: bool) -> None:
    device = DelayedDevice(
        lambda num_pending: data.draw(st.integers(0, num_pending)), shares_host_memory=shares_host_memory
    )
    assert texts(device, algorithm) == texts(InlineDevice(), algorithm)
