"""The device that other tests trust to show what is read or reused too early."""

from __future__ import annotations

import torch

from specgrammar.testing.manual_device import ManualDevice


def test_the_manual_device_runs_in_order_and_only_when_told() -> None:
    device = ManualDevice()
    source, destination = torch.arange(3), torch.arange(3)
    ran = list[str]()
    device.copy(destination, source)
    assert destination.tolist() == [torch.iinfo(torch.int64).max // 3] * 3
    copied = device.record()
    device.enqueue(lambda: ran.append("kernel"))
    source.fill_(8)  # too early
    assert not copied.done()
    copied.wait()
    copied.wait()
    assert copied.done()
    assert destination.tolist() == [8, 8, 8]
    assert not ran
    assert not device.record().done()
    device.run(5)
    assert ran == ["kernel"]
    assert device.record().done()


def test_the_manual_device_keeps_what_is_still_to_be_read() -> None:
    device = ManualDevice()
    buffer, seen = torch.zeros(1), list[float]()
    device.enqueue(lambda: seen.append(buffer.item()), buffer)
    device.copy(buffer, torch.ones(1))  # behind the kernel, as on any stream
    device.run_all()
    assert seen == [0.0]
    device.copy(buffer, torch.ones(1))
    assert buffer.isnan().all()
