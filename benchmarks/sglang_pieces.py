"""The pieces of sglang around its grammar masks, and our adapter's modules on top of them.

Where sglang is installed they are imported. Elsewhere they are its own definitions too, run out of its source
files as modules of the same names, without the packages that sglang needs.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

import llguidance.numpy
import torch
import xgrammar
from llguidance import LLMatcher, LLTokenizer

from benchmarks.sglang_source import load_definitions

_MODULES: dict[str, set[str]] = {
    "sglang.srt.utils.token_sequence_matcher": {"TokenSequenceMatcher"},
    "sglang.srt.constrained.base_grammar_backend": {
        "BaseGrammarObject",
        "BaseGrammarBackend",
        "GrammarMask",
        "GrammarRow",
        "GrammarStats",
        "InvalidGrammarObject",
    },
    "sglang.srt.constrained.xgrammar_backend": {"XGrammarGrammar", "_allocate_token_bitmask"},
    "sglang.srt.constrained.llguidance_backend": {"GuidanceGrammar"},
    "sglang.srt.constrained.reasoner_grammar_backend": {"ReasonerGrammarObject"},
    "sglang.srt.speculative.spec_utils": {
        "GrammarTree",
        "build_grammar_vocab_mask",
        "generate_token_bitmask",
        "traverse_tree",
    },
    "sglang.srt.plugins.hook_registry": {"HookType", "_wrap_fn"},
    "sglang.srt.managers.scheduler_components.batch_result_processor": {
        "SchedulerBatchResultProcessor",
        "_get_speculative_output_stride",
    },
}


@cache
def load() -> SimpleNamespace:
    """Its definitions by name, and `grammar`, `gates` and `mask` of ours.

    Raises:
        RuntimeError: sglang is not installed, and its source could not be fetched.
    """
    if find_spec("sglang") is None:
        modules = _from_source()
        sys.modules |= modules
        try:
            ours = _ours()
        finally:
            for name in modules:
                del sys.modules[name]
    else:
        modules = {name: import_module(name) for name in _MODULES}
        ours = _ours()
    # Where the plugin was loaded before, our hook is around one of them.
    names = {
        name: unwrap(getattr(modules[module], name)) for module, names in _MODULES.items() for name in names
    }
    return SimpleNamespace(**names, **ours)


def _ours() -> dict[str, Any]:
    return {name: import_module(f"specgrammar_sglang.{name}") for name in ("grammar", "gates", "mask")}


def _from_source() -> dict[str, types.ModuleType]:
    """Modules that hold the definitions, and their packages."""
    names: dict[str, Any] = {name: getattr(typing, name) for name in typing.__all__}
    names |= {"torch": torch, "time": time, "dataclasses": dataclasses, "dataclass": dataclasses.dataclass}
    names |= {"field": dataclasses.field, "logger": logging.getLogger("sglang"), "HTTPStatus": HTTPStatus}
    names |= {name: getattr(xgrammar, name) for name in xgrammar.__all__}
    names |= {"allocate_token_bitmask": _allocate, "fill_next_token_bitmask": _fill}
    names |= {"LLMatcher": LLMatcher, "LLTokenizer": LLTokenizer, "_LLGUIDANCE_LOG_LEVEL": 0}
    names |= {"is_pin_memory_available": torch.cuda.is_available, "TREE_TRAVERSE_TIME_THRESHOLD": 1}
    names |= {"Enum": Enum, "Callable": Callable, "functools": functools}
    names |= {"FINISH_ABORT": lambda message, *_: SimpleNamespace(message=message)}
    modules: dict[str, types.ModuleType] = {}
    for name, wanted in _MODULES.items():
        path = f"{name.removeprefix('sglang.').replace('.', '/')}.py"
        names |= load_definitions(path, wanted, names)
        module = modules[name] = types.ModuleType(name)
        module.__dict__.update(names)
        for depth in range(1, name.count(".") + 1):
            package = name.rsplit(".", depth)[0]
            modules.setdefault(package, types.ModuleType(package)).__path__ = []
    return modules


# `llguidance.torch` compiles a kernel when it is imported, with warnings; these are the functions in question.


def _allocate(num_rows: int, vocab_size: int) -> torch.Tensor:
    return torch.from_numpy(llguidance.numpy.allocate_token_bitmask(num_rows, vocab_size))


def _fill(matcher: LLMatcher, rows: torch.Tensor, index: int) -> None:
    llguidance.numpy.fill_next_token_bitmask(matcher, rows.numpy(), index)
