"""Triton where it is installed: kernels can be imported without it, and launching one says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch

from specgrammar.errors import ConfigError

HAS_TRITON = find_spec("triton") is not None


def jit(kernel: Callable[..., None]) -> Any:
    """`triton.jit` where there is triton; else the kernel as it is, which no launcher runs.

    Parameters are annotated with `tl.tensor`, `int` and `tl.constexpr`: the compiler, unlike the interpreter,
    refuses names that it does not know.
    """
    if not HAS_TRITON:
        return kernel
    import triton

    return triton.jit(kernel)


def require_triton(what: str) -> None:
    """Raise ConfigError where triton is missing; launchers call it first."""
    if not HAS_TRITON:
        raise ConfigError(f"{what} needs triton: pip install triton, or keep the tensors on the CPU")


def device_of(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes the tensor's device current: Triton launches there, wherever the arguments are."""
    if tensor.device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(tensor.device).device(tensor.device)
    return context
