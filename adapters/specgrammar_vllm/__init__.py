"""specgrammar inside vLLM 0.32.

    LLM(..., scheduler_cls="specgrammar_vllm.Scheduler",
        speculative_config={"method": "custom_class", "model": "specgrammar_vllm.Proposer", ...},
        additional_config={"specgrammar": {"backend": "xgrammar"}})

Importing this package imports nothing of vLLM; asking for one of its classes does, and checks that vLLM is what
they were written for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specgrammar_vllm.proposer import Proposer
    from specgrammar_vllm.scheduler import AsyncScheduler, Scheduler

__all__ = ["AsyncScheduler", "Proposer", "Scheduler"]

_HOME = {"AsyncScheduler": "scheduler", "Proposer": "proposer", "Scheduler": "scheduler"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
