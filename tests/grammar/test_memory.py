"""Invariant 8: host memory is not read before its copy is done, nor reused before its upload is done.

The device runs nothing by itself (`DelayedDevice`): what is read or reused too early comes out wrong.
Allocators and staging strategies by themselves are the kit's; here are the masks that use them, and an engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toy_target import ToyAdapter

VOCAB_SIZE = 64
NUM_WORDS = VOCAB_SIZE // 32


# -- masks -------------------------------------------------------------------------------------------------


class Filled:
    """A mask whose rows are drawn, and what it must do to logits."""

    def __init__(self, ring: BitmaskRing, device: DelayedDevice, num_nodes: int, seed: int) -> None:
        """Fill the rows of some nodes, owned in a drawn order."""
        rng = np.random.default_rng(seed)
        slot = ring.acquire(num_nodes)
        rows = MaskRows(slot.rows, num_nodes, slot.owners)
        legal = np.ones((num_nodes, VOCAB_SIZE), np.bool_)
        for node in rng.permutation(num_nodes)[: rng.integers(1, num_nodes + 1)].tolist():
            legal[node] = rng.integers(0, 2, VOCAB_SIZE)
            rows.statuses[node] = NodeStatus.LIVE
            slot.rows[rows.take(node)] = np.packbits(legal[node], bitorder="little").view(np.int32)
        self.slot, self.num_nodes = slot, num_nodes
        self.legal = torch.from_numpy(legal)
        self.mask = GrammarMask(rows, slot, device, VOCAB_SIZE)
        self.found: torch.Tensor | None = None

    def apply_on(self, device: DelayedDevice) -> None:
        """Enqueue what the kernel does on an accelerator: it reads the device's memory when it runs."""
        _, rows, _, owners = self.slot.tensors(self.mask.num_rows)

        def kernel() -> None:
            found = torch.ones(self.num_nodes, VOCAB_SIZE, dtype=torch.bool)
            for row, owner in zip(rows, owners.tolist(), strict=True):
                found[owner] = (row[:, None] >> torch.arange(32) & 1).flatten().bool()
            self.found = found

        device.launch(kernel)

    def check(self) -> None:
        """The kernel ran, over this mask's rows."""
        assert self.found is not None
        assert torch.equal(self.found, self.legal)


def test_invariant_8_rows_and_owners_are_not_reused_before_their_upload_is_done() -> None:
    device = DelayedDevice()
    ring = BitmaskRing(device, NUM_WORDS, num_slots=1)
    masks = []
    for step in range(4):  # each takes the only slot while the upload before it has not run
        masks.append(Filled(ring, device, num_nodes=5, seed=step))
        masks[-1].mask.upload()
        masks[-1].apply_on(device)
        masks[-1].mask.discard()
    device.run_all()
    for mask in masks:
        mask.check()


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=8), st.data())
def test_invariant_8_masks_on_any_schedule(
    num_slots: int, steps: Sequence[tuple[int, int]], data: st.DataObject
) -> None:
    """Slots are held for a drawn time, and of every mask's work a drawn part runs before the next is built."""
    device = DelayedDevice()
    ring = BitmaskRing(device, NUM_WORDS, num_slots)
    masks: list[Filled] = []
    held: list[Filled] = []
    for seed, (num_nodes, num_pieces) in enumerate(steps):
        masks.append(Filled(ring, device, num_nodes, seed))
        held.append(masks[-1])
        masks[-1].mask.upload()
        device.run(num_pieces)
        at_least = max(0, len(held) - num_slots + 1)  # the next mask needs a slot
        for _ in range(data.draw(st.integers(at_least, len(held)))):
            done = held.pop(data.draw(st.integers(0, len(held) - 1)))
            done.apply_on(device)
            done.mask.discard()
    for mask in held:
        mask.apply_on(device)
    device.run_all()
    for mask in masks:
        mask.check()


def test_invariant_8_the_host_applies_a_mask_when_its_upload_is_done() -> None:
    device = DelayedDevice()
    ring = BitmaskRing(device, NUM_WORDS, num_slots=1)
    for step in range(3):
        filled = Filled(ring, device, num_nodes=5, seed=step)
        filled.mask.upload()
        assert device.num_pending == 2
        logits = torch.zeros(5, VOCAB_SIZE)
        filled.mask.apply(logits)
        assert torch.equal(logits.isfinite(), filled.legal)


def test_a_mask_keeps_its_device_memory_until_it_is_applied() -> None:
    device = DelayedDevice()
    ring = BitmaskRing(device, NUM_WORDS, num_slots=2)
    first = Filled(ring, device, num_nodes=3, seed=0)
    first.mask.upload()
    device.run_all()
    for seed in (1, 2):
        other = Filled(ring, device, num_nodes=3, seed=seed)
        other.mask.upload()
        other.mask.discard()
    logits = torch.zeros(3, VOCAB_SIZE)
    first.mask.apply(logits)
    assert torch.equal(logits.isfinite(), first.legal)


# -- all of it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "ngram"])
def test_invariant_8_an_engine_writes_the_same_on_a_device_that_never_runs_ahead(algorithm: str) -> None:
    requests = [
        Request(request_id=str(i), prompt_tokens=(0, 1, 0, 1), grammar=grammar, max_new_tokens=24)
        for i, grammar in enumerate((GrammarSpec.regex("(ab)+c"), None, GrammarSpec.regex("[abc12]*")))
    ]
    outputs = []
    delayed = DelayedDevice()
    for device in (InlineDevice(), delayed):
        engine = Engine.build(Config(algorithm=algorithm), ToyAdapter(device=device))
        outputs.append({output.request_id: output.token_ids for output in engine.generate(requests)})
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 3
    assert delayed.num_done > 2
