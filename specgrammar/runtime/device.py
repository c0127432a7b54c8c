"""Devices: the few stream operations that a step needs (the contract is `protocols.staging.Device`).

Inline here is the host itself, where everything is done when its call returns. `cpu_stream` runs work on a
thread beside the host's, `accelerator` on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from specgrammar.errors import ConfigError
from specgrammar.protocols.staging import Device, WorkObserver
from specgrammar.runtime.accelerator import AcceleratorDevice
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.outcome import Outcome, observed
from specgrammar.trees.jit import HAS_TRITON

T = TypeVar("T")

CPU_STREAM = "cpu-stream"


class DoneEvent:
    """An event of a device on which everything is done when the call returns."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def done(self) -> bool:
        """Always."""
        return True


class InlineDevice:
    """The host as its own device: no stream, every operation is done when its call returns."""

    torch_device: torch.device = torch.device("cpu")
    can_pin = False
    shares_host_memory = True
    runs_aside = False

    def __init__(self) -> None:
        """Nothing to set up."""
        self.on_work: WorkObserver | None = None

    def launch(self, work: Callable[[], T], label: str = "") -> Outcome[T]:
        """Run the work now; see `protocols.staging.Device.launch`."""
        return Outcome(observed(work, label, self.on_work))

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now."""
        destination.copy_(source)

    def record(self) -> DoneEvent:
        """An event that is done."""
        return DoneEvent()


def device_for(name: str) -> Device:
    """The device by name: `cpu`, `cpu-stream`, `cuda`, `cuda:1`, or `auto` (a usable accelerator, else `cpu`).

    Every call with `cpu-stream` starts a stream of its own.

    Raises ConfigError for a name that torch does not know, a device that is not there, and an accelerator that
    lacks what staging and masks need.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return InlineDevice() if found is None or _lacks(found) else AcceleratorDevice(found)
    if name == CPU_STREAM:
        return CpuStream()
    try:
        torch_device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device {name!r} is not one that torch knows; use auto, cpu, cpu-stream or cuda"
        ) from error
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
