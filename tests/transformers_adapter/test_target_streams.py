"""Forwards on a stream: the host goes on, one thread is in the models, and failures are told."""

import threading

import numpy as np
import pytest
import torch

from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar_transformers import TransformersDrafter, TransformersTarget
from specgrammar_transformers.kv_cache import SlotCache
from tests.transformers_adapter.tiny import (
    VOCAB,
    accepted,
    batch_of,
    drafted,
    plain_logits,
    tiny_model,
    tree_of,
)


def test_the_host_goes_on_while_the_forward_runs() -> None:
    device = DelayedDevice()
    target = TransformersTarget(tiny_model(), 1, device)
    sequence = {"a": [1, 2, 3]}
    target.add("a", sequence["a"])
    batch = batch_of(0, sequence, ["a"])
    pending = target.verify(batch, tree_of(0, [3], [[-1, 0]], np.random.default_rng(0)))
    assert device.num_pending == 1
    num_done = device.num_done
    assert pending.wait().isfinite().all()
    assert device.num_done == num_done + 1
    target.commit(batch, accepted([[0, 1]], [5]))
    target.remove("a")
    assert device.num_pending == 2  # keeping the path, clearing the row


def test_only_the_streams_thread_is_in_the_models() -> None:
    """Target and drafter share a stream; whatever the host asks for, it runs there and nowhere else."""
    stream = CpuStream()
    target_model, draft_model = tiny_model(), tiny_model("gpt2", "eager")
    target = TransformersTarget(target_model, 2, stream)
    drafter = TransformersDrafter(draft_model, VOCAB, 2, stream)
    own = stream.launch(threading.current_thread).wait()
    threads = set[threading.Thread]()
    num_inside = most_inside = 0

    def enter(*_: object) -> None:
        nonlocal num_inside, most_inside
        threads.add(threading.current_thread())
        num_inside += 1
        most_inside = max(most_inside, num_inside)

    def leave(*_: object) -> None:
        nonlocal num_inside
        num_inside -= 1

    for model in (target_model, draft_model):
        model.base_model.register_forward_pre_hook(enter)
        model.base_model.register_forward_hook(leave)
    rng = np.random.default_rng(11)
    sequences = {"a": rng.integers(VOCAB, size=50).tolist(), "b": rng.integers(VOCAB, size=3).tolist()}
    for name, tokens in sequences.items():
        target.add(name, tokens)
    for step in range(6):
        batch = batch_of(step, sequences, ["b", "a"])
        drafts, _ = drafted(drafter, batch, 2, sampled=False)
        chains = [[sequences[name][-1], *row] for name, row in zip("ba", drafts.tolist(), strict=True)]
        host = HostTree.from_chains(chains)
        target.verify(batch, DraftTree(step, host.cu_nodes, host))
        target.commit(batch, accepted([[0, 1], [0]], [5, 6]))  # at once: it is ordered behind the forward
        sequences = {"b": [*sequences["b"], chains[0][1], 5], "a": [*sequences["a"], 6]}
    stream.record().wait()
    assert threads == {own}
    assert (most_inside, num_inside) == (1, 0)


def test_a_failed_forward_is_told_to_who_waits_for_it() -> None:
    model = tiny_model()
    target = TransformersTarget(model, 2, CpuStream())
    sequence = {"a": [1, 2, 3]}
    target.add("a", sequence["a"])

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    hook = model.base_model.register_forward_pre_hook(fail)
    batch, tree = batch_of(0, sequence, ["a"]), tree_of(0, [3], [[-1]], np.random.default_rng(0))
    pending = target.verify(batch, tree)
    with pytest.raises(MemoryError, match="no room"):
        pending.wait()
    with pytest.raises(MemoryError, match="no room"):
        target.add("b", [1, 2])
    hook.remove()
    expected = plain_logits(model, [1, 2, 3])
    torch.testing.assert_close(target.verify(batch, tree).wait()[0], expected, atol=2e-5, rtol=1e-5)


def test_a_change_of_the_cache_that_failed_shows_in_every_forward_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = TransformersTarget(tiny_model(), 1, CpuStream())
    target.add("a", [1, 2, 3])

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    rng = np.random.default_rng(0)
    batch = batch_of(0, {"a": [1, 2, 3]}, ["a"])
    tree = tree_of(0, [3], [[-1, 0, 0]], rng)
    target.verify(batch, tree).wait()
    assert tree.host is not None
    with monkeypatch.context() as patch:
        patch.setattr(SlotCache, "keep", fail)
        target.commit(batch, accepted([[0, 2]], [5]))
        tokens = {"a": [1, 2, 3, int(tree.host.draft_tokens[2]), 5]}
        pending = target.verify(batch_of(1, tokens, ["a"]), tree_of(1, [5], [[-1]], rng))
        with pytest.raises(MemoryError, match="no room"):
            pending.wait()
    with pytest.raises(MemoryError, match="no room"):
        target.verify(batch_of(1, tokens, ["a"]), tree_of(1, [5], [[-1]], rng)).wait()
