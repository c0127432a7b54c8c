"""From a draft's launch to the barrier the host asks for no value of the device's.

On an accelerator such a call waits for all that was enqueued, and the overlap is gone; on a CPU stream it reads
memory that nobody has written. Here it raises. What launched work does by itself is not looked at: on a CPU
stream it runs behind what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.request import Request
from specgrammar.spec.chain import ModelProducer
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_target import LateAdapter
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import DraftTree
from specgrammar_transformers import TransformersDrafter, TransformersTarget
from tests.transformers_adapter.tiny import VOCAB, tiny_model

_READS = {
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero")
}


class HostReadError(AssertionError):
    """The host asked for a device's value."""


class NoHostReads(TorchFunctionMode):
    """Refuses reads while it is armed, but those of work on the stream.

    Attributes:
        armed: whether the host is between a launch and the barrier.
        num_calls: torch calls of the host that were looked at.
    """

    def __init__(self, device: DelayedDevice) -> None:
        super().__init__()
        self.armed = False
        self.num_calls = 0
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.armed and not self._device._is_running:
            self.num_calls += 1
            if func in _READS:
                raise HostReadError(f"{func} between a launch and the barrier")
        return func(*args, **(kwargs or {}))


def run(monkeypatch: pytest.MonkeyPatch, before_barrier: Callable[[DraftTree], object]) -> NoHostReads:
    """Generate with a real target and a real draft model, both on one late stream."""
    device = DelayedDevice()
    mode = NoHostReads(device)
    target = TransformersTarget(tiny_model(seed=1), 3, device)
    drafter = TransformersDrafter(tiny_model(seed=2), VOCABULARY.vocab_size, 3, device)
    propose, resolve = ModelProducer.propose, Ledger.resolve

    def proposing(self: ModelProducer, batch: DecodeBatch) -> DraftTree:
        mode.armed = True
        tree = propose(self, batch)
        before_barrier(tree)
        return tree

    def resolving(self: Ledger) -> None:
        mode.armed = False
        resolve(self)

    monkeypatch.setattr(ModelProducer, "propose", proposing)
    monkeypatch.setattr(Ledger, "resolve", resolving)
    adapter: Any = LateAdapter(device, target, drafter)  # type: ignore[arg-type]  # another target than its own
    config = Config(
        algorithm="chain", algorithm_options={"drafter": "tiny"}, mask_policy="eager", max_batch_size=3
    )
    engine = Engine.build(config, adapter)
    requests = [
        Request(
            str(n), (2, 3, 4 + n), GrammarSpec.regex("[abc12]*") if n != 1 else None, max_new_tokens=8 + 3 * n
        )
        for n in range(4)
    ]
    with mode:
        outputs = list(engine.generate(requests))
    assert [output.error for output in outputs] == [None] * 4
    assert engine.trace.num_overlapped_steps > 5
    return mode


def test_nobody_reads_between_a_launch_and_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VOCABULARY.vocab_size <= VOCAB
    assert run(monkeypatch, lambda _: None).num_calls > 100


@pytest.mark.parametrize("read", ["tolist", "cpu", "nonzero"])
def test_a_read_is_noticed(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostReadError):
        run(monkeypatch, lambda tree: getattr(tree.device.draft_tokens, read)())
