"""On a stream that does nothing before somebody waits for it, masks are there before the forward has run."""

from __future__ import annotations

import pytest

from specgrammar.config import Config
from specgrammar.grammar.mask import GrammarMask
from specgrammar.runtime.engine import Engine
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.late_target import LateAdapter, LateTarget
from specgrammar.testing.requests import REQUESTS
from specgrammar.testing.toy_target import join_in_order
from tests.overlap.producers import DeviceDrafts
from tests.toys import backend


@pytest.mark.parametrize("shares_host_memory", [True, False])
def test_no_step_waits_for_its_forward_before_its_mask_is_built(
    shares_host_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a tree that a device made: its copy is ahead of the forward."""
    device = DelayedDevice(shares_host_memory=shares_host_memory)
    engine = Engine(
        LateAdapter(device, LateTarget(device)),
        backend("xgrammar"),
        DeviceDrafts(device, "history"),
        Config(mask_policy="eager", max_batch_size=4),
        agree_joins=join_in_order,
    )
    forwards: list[float] = []
    device.on_work = lambda label, begin, _: forwards.append(begin) if label == "forward" else None
    num_before: list[int] = []
    upload = GrammarMask.upload

    def seen(mask: GrammarMask) -> None:
        num_before.append(len(forwards))
        upload(mask)

    monkeypatch.setattr(GrammarMask, "upload", seen)
    outputs = list(engine.generate(REQUESTS[:12]))
    assert len(outputs) == 12
    assert len(forwards) > 20
    assert num_before == list(range(len(forwards)))
