"""Devices: the few stream operations that staging needs (the contract is `protocols.staging.Device`)."""

from __future__ import annotations

from typing import Any

import torch

from specgrammar.errors import ConfigError
from specgrammar.protocols.staging import Device
from specgrammar.trees.jit import HAS_TRITON


class DoneEvent:
    """An event of a device on which everything is done when the call returns."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def done(self) -> bool:
        """Always."""
        return True


class InlineDevice:
    """The host as its own device: no stream, every operation is done when its call returns."""

    torch_device = torch.device("cpu")
    can_pin = False
    shares_host_memory = True

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now."""
        destination.copy_(source)

    def record(self) -> DoneEvent:
        """An event that is done."""
        return DoneEvent()


class AcceleratorEvent:
    """An event of torch's, CUDA's or another accelerator's."""

    def __init__(self, event: Any) -> None:
        """Wrap a recorded event."""
        self._event = event

    def wait(self) -> None:
        """Block the host until it is reached."""
        self._event.synchronize()

    def done(self) -> bool:
        """Whether it was reached."""
        return bool(self._event.query())


class AcceleratorDevice:
    """A CUDA or ROCm device; operations go to its current stream."""

    can_pin = True
    shares_host_memory = False

    def __init__(self, torch_device: torch.device) -> None:
        """Bind to a device, e.g. `torch.device("cuda", 0)`, that `device_for` would accept."""
        self.torch_device = torch_device
        self._module = torch.get_device_module(torch_device)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; asynchronous where the host side is pinned."""
        destination.copy_(source, non_blocking=True)

    def record(self) -> AcceleratorEvent:
        """Record an event on the current stream."""
        event = self._module.Event()
        event.record(self._module.current_stream(self.torch_device))
        return AcceleratorEvent(event)


def device_for(name: str) -> Device:
    """The device by name: `cpu`, `cuda`, `cuda:1`, or `auto` (an accelerator that can be used, else the CPU).

    Raises ConfigError for a name that torch does not know, a device that is not there, and an accelerator that
    lacks what staging and masks need.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return InlineDevice() if found is None or _lacks(found) else AcceleratorDevice(found)
    try:
        torch_device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r} is not one that torch knows; use auto, cpu or cuda") from error
    if torch_device.type == "cpu":
        return InlineDevice()
    if lacking := _lacks(torch_device):
        raise ConfigError(f"device {name!r}: {lacking}")
    module = torch.get_device_module(torch_device)
    if not module.is_available() or (torch_device.index or 0) >= module.device_count():
        raise ConfigError(f"device {name!r} is not on this machine; use --device auto or cpu")
    return AcceleratorDevice(torch_device)


def _lacks(torch_device: torch.device) -> str:
    """Why an accelerator cannot be used, empty where it can. For torch, AMD's devices are `cuda` too."""
    if torch_device.type != "cuda":
        return (
            "staging and masks need streams, events, pinned memory and Triton kernels, which only CUDA and "
            "ROCm devices are known to have together; use auto, cpu or cuda"
        )
    if not HAS_TRITON:
        return "applying masks there needs triton: pip install triton, or use cpu"
    return ""
