"""Recording tensor operations as TorchScript, which runs them as one call without the interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch


def record(
    function: Callable[..., Any] | torch.nn.Module, example: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """The operations that a function without branches makes, by running it on an example.

    Sizes and values of the arguments may differ at each call, their number and number of dimensions may not.
    What the function writes to its arguments it writes to the example's, too.
    """
    trace: Any = torch.jit.trace
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of each branch that it takes, and of its own age
        recorded: Callable[..., Any] = trace(function, tuple(example), check_trace=False)
    return recorded
