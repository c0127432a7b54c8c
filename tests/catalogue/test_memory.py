"""Host memory and asynchronous copies, on a stream that runs when the test says so."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.staging import Resolved, from_device
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import DeviceTree, DraftTree, HostTree
from tests.catalogue.naive import everything, row_behind
from tests.catalogue.ours import AB, PAIRS, A, B, C, ids, matcher, session_of

NUM_WORDS = VOCABULARY.num_words
LETTERS = [GrammarSpec.regex(f"{letter}+") for letter in "abc"]


def look_and_apply(mask: GrammarMask, seen: list[list[int]]) -> None:
    """Note what a mask's only row allows where it was uploaded to, and apply it."""
    assert mask._slot is not None
    seen.append(ids(mask._slot.tensors(1).device_rows[0].numpy()))
    mask.apply(torch.zeros(1, VOCABULARY.vocab_size))


@pytest.mark.parametrize("num_slots", [2, 3, 4])
def test_failure_30_a_host_buffer_is_overwritten_before_its_copy_is_done(num_slots: int) -> None:
    device, host = DelayedDevice(), torch.zeros(1, NUM_WORDS, dtype=torch.int32)
    uploaded = [torch.empty_like(host) for _ in LETTERS]
    for spec, destination in zip(LETTERS, uploaded, strict=True):
        host[0] = torch.from_numpy(row_behind(matcher(spec)))  # one buffer, filled anew in each step
        device.copy(destination, host)
    device.run_all()
    assert [ids(rows[0].numpy()) for rows in uploaded] == [[C]] * 3, "each step has the last one's row"

    device = DelayedDevice()
    ring, seen = BitmaskRing(device, NUM_WORDS, num_slots), list[list[int]]()
    for spec in LETTERS:
        tree = Resolved(HostTree.roots([A]))
        mask = build_grammar_mask([session_of(spec)], tree, ring, device, VOCABULARY)
        mask.upload()
        device.launch(partial(look_and_apply, mask, seen))
        if num_slots < len(LETTERS):
            device.run_all()  # nobody gives a slot back that is not applied
    device.run_all()
    assert seen == [[A], [B], [C]]
    slots = [ring.acquire(1) for _ in range(num_slots)]
    slots[0].rows[0] = everything()
    tensors = slots[0].tensors(1)
    device.copy(tensors.device_rows, tensors.host_rows)
    slots[0].release(device.record())
    assert device.num_pending == 1
    assert ring.acquire(1) is slots[0]
    assert device.num_pending == 0, "a slot is handed out again behind the upload that reads it"


def test_failure_31_host_memory_is_read_before_its_copy_is_done() -> None:
    drafts = torch.tensor([A, AB, AB, A])
    device = DelayedDevice()
    host = torch.empty_like(drafts)
    device.copy(host, drafts)  # non_blocking=True
    assert not set(host.tolist()) & set(range(VOCABULARY.vocab_size)), "no token yet, but readable"

    chain = HostTree.from_chains([[A, AB, AB, A]])
    made = DeviceTree(
        drafts, torch.from_numpy(chain.retrieve_next_token), torch.from_numpy(chain.retrieve_next_sibling)
    )
    for num_running in range(4):
        device = DelayedDevice(schedule=lambda num_pending, most=num_running: min(num_pending, most))  # type: ignore[misc]  # bound now
        staged = from_device(device).stage(DraftTree(0, chain.cu_nodes, device=made))
        tree = staged.resolve()
        assert tree.draft_tokens.tolist() == [A, AB, AB, A]
        status = session_of(PAIRS).fill(tree, torch.zeros(4, NUM_WORDS, dtype=torch.int32).numpy())
        assert (status > 1).all()
        assert staged.resolve() is tree


class PinningDevice(InlineDevice):
    """A device with memory of its own to which pinned memory is copied."""

    can_pin = True


def test_failure_32_pinning_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def allocator(kind: Any) -> Any:
        make = getattr(torch, kind)

        def allocate(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            asked.append(pin_memory)
            if pin_memory and not has_accelerator:
                raise RuntimeError("Cannot access accelerator device when none is available.")
            made: torch.Tensor = make(*args, **options)
            return made

        return allocate

    for kind in ("zeros", "empty"):
        monkeypatch.setattr(torch, kind, allocator(kind))
    has_accelerator = False
    with pytest.raises(RuntimeError, match="none is available"):
        torch.zeros((4, NUM_WORDS), dtype=torch.int32, pin_memory=True)  # as on the machine it was written on

    chain = HostTree.from_chains([[A, AB]])
    tree = DraftTree(0, chain.cu_nodes, device=DeviceTree(*(torch.from_numpy(part) for part in _parts(chain))))
    for device, pins in ((InlineDevice(), False), (DelayedDevice(), False), (PinningDevice(), True)):
        has_accelerator = pins
        asked.clear()
        BitmaskRing(device, NUM_WORDS).acquire(4).release(None)
        assert from_device(device).stage(tree).resolve().draft_tokens.tolist() == [A, AB]
        assert any(asked) == pins


def _parts(tree: HostTree) -> list[Any]:
    return [tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling]
