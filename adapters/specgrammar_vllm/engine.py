"""The border to vLLM: all of it that the scheduler imports, and a check that it is what we were written for.

Every private interface that is relied on has a line in `EXPECTATIONS`. They are checked when the scheduler is
imported, so a changed engine fails at its start, with what changed, and not in the loop.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

# In vLLM's environment only.
import vllm  # pyright: ignore[reportMissingImports]
from vllm.config import SpeculativeConfig, VllmConfig  # pyright: ignore[reportMissingImports]
from vllm.v1 import request, structured_output  # pyright: ignore[reportMissingImports]
from vllm.v1.core.sched import async_scheduler, output, scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.structured_output import backend_types  # pyright: ignore[reportMissingImports]
from vllm.v1.structured_output import request as structured_request  # pyright: ignore[reportMissingImports]

from specgrammar.errors import PluginError
from specgrammar_vllm import versions
from specgrammar_vllm.kinds import KINDS

__all__ = [
    "EXPECTATIONS",
    "StructuredOutputBackend",
    "StructuredOutputGrammar",
    "VllmAsyncScheduler",
    "VllmScheduler",
    "check",
    "proposer_expectation",
]

VllmScheduler: Any = scheduler.Scheduler
VllmAsyncScheduler: Any = async_scheduler.AsyncScheduler
StructuredOutputBackend: Any = backend_types.StructuredOutputBackend
StructuredOutputGrammar: Any = backend_types.StructuredOutputGrammar
_Bounds: Any = structured_output.ConstraintBounds
_Manager: Any = structured_output.StructuredOutputManager
_Request: Any = request.Request


@dataclass(frozen=True)
class Expectation:
    """A private interface of vLLM that is relied on.

    Attributes:
        what: where it is.
        expected: what it has to be, as a value that can be compared and shown.
        find: reads what it is; an error counts as its absence.
    """

    what: str
    expected: object
    find: Callable[[], object]

    def problem(self) -> str:
        """What has changed; empty where nothing has."""
        try:
            found = self.find()
        except Exception as error:
            return f"{self.what} cannot be read ({type(error).__name__}: {error})"
        return "" if found == self.expected else f"{self.what} is {found!r}, not {self.expected!r}"


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _takes(owner: Any, name: str, *parameters: str) -> Expectation:
    """A method with these parameters behind `self`, as the first ones."""
    where = f"{owner.__name__}.{name}"
    return Expectation(
        f"the parameters of {where}",
        list(parameters),
        lambda: _parameters(getattr(owner, name))[1 : 1 + len(parameters)],
    )


def _source_names(function: Any, pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, inspect.getsource(function))))


def _present(names: Iterable[str], found: Iterable[str]) -> list[str]:
    return sorted(set(names) & set(found))


_STEP_FIELDS = sorted(
    (
        "num_scheduled_tokens",
        "scheduled_spec_decode_tokens",
        "has_structured_output_requests",
        "pending_structured_output_tokens",
    )
)
_REQUEST_FIELDS = sorted(
    ("request_id", "is_prefill_chunk", "structured_output_request", "max_tokens", "all_token_ids")
)
_MANAGER_FIELDS = sorted(("backend", "enable_in_reasoning", "reasoner_cls", "tokenizer"))

EXPECTATIONS = [
    _takes(VllmScheduler, "__init__", "vllm_config", "kv_cache_config", "structured_output_manager"),
    _takes(VllmAsyncScheduler, "__init__", "args", "kwargs"),
    _takes(VllmScheduler, "schedule", "throttle_prefills"),
    _takes(VllmScheduler, "get_grammar_bitmask", "scheduler_output"),
    _takes(VllmScheduler, "shutdown"),
    Expectation(
        "what vLLM's Scheduler calls of its structured output manager",
        ["accept_tokens", "grammar_bitmask", "validate_tokens"],
        lambda: _source_names(VllmScheduler, r"self\.structured_output_manager\.(\w+)"),
    ),
    Expectation(
        "what vLLM's AsyncScheduler calls of its structured output manager",
        [],
        lambda: _source_names(VllmAsyncScheduler, r"structured_output_manager\.(\w+)"),
    ),
    _takes(_Manager, "validate_tokens", "request", "spec_tokens"),
    _takes(
        _Manager,
        "grammar_bitmask",
        "requests",
        "structured_output_request_ids",
        "scheduled_spec_decode_tokens",
    ),
    _takes(_Manager, "accept_tokens", "request", "new_token_ids"),
    _takes(_Manager, "_get_constraint_bounds", "request", "spec_tokens", "spec_tokens_committed"),
    Expectation("vLLM's ConstraintBounds", ("grammar_start", "constraint_start"), lambda: _Bounds._fields),
    Expectation(
        "that vLLM's StructuredOutputManager.grammar_init keeps a backend that is there",
        ["if self.backend is None:"],
        lambda: _source_names(_Manager.grammar_init, r"if self\.backend is None:"),
    ),
    Expectation(
        "attributes of vLLM's StructuredOutputManager",
        _MANAGER_FIELDS,
        lambda: _present(_MANAGER_FIELDS, _source_names(_Manager, r"self\.(\w+)")),
    ),
    Expectation(
        "what vLLM's StructuredOutputBackend asks for",
        ["allocate_token_bitmask", "compile_grammar", "destroy"],
        lambda: sorted(StructuredOutputBackend.__abstractmethods__),
    ),
    _takes(StructuredOutputBackend, "compile_grammar", "request_type", "grammar_spec", "stop_token_ids"),
    Expectation(
        "what vLLM's StructuredOutputGrammar asks for",
        ["accept_tokens", "fill_bitmask", "is_terminated", "reset", "rollback", "validate_tokens"],
        lambda: sorted(StructuredOutputGrammar.__abstractmethods__),
    ),
    Expectation(
        "vLLM's kinds of structured output",
        list(KINDS),
        lambda: [kind.name for kind in backend_types.StructuredOutputOptions],
    ),
    Expectation(
        "fields of vLLM's SchedulerOutput",
        _STEP_FIELDS,
        lambda: _present(_STEP_FIELDS, (field.name for field in fields(output.SchedulerOutput))),
    ),
    Expectation(
        "attributes of vLLM's Request",
        _REQUEST_FIELDS,
        lambda: _present(_REQUEST_FIELDS, _source_names(_Request, r"self\.(\w+)")),
    ),
    Expectation(
        "vLLM's Request.use_structured_output",
        True,
        lambda: isinstance(_Request.use_structured_output, property),
    ),
    Expectation(
        "vLLM's Request.num_output_tokens", True, lambda: isinstance(_Request.num_output_tokens, property)
    ),
    _takes(VllmScheduler, "update_draft_token_ids", "draft_token_ids"),
    Expectation(
        "vLLM's VllmConfig.use_v2_model_runner",
        True,
        lambda: isinstance(VllmConfig.use_v2_model_runner, property),
    ),
    Expectation(
        "vLLM's SpeculativeConfig.num_speculative_tokens_per_batch_size",
        True,
        lambda: "num_speculative_tokens_per_batch_size" in SpeculativeConfig.__dataclass_fields__,
    ),
    Expectation(
        "vLLM's StructuredOutputRequest.grammar",
        True,
        lambda: isinstance(structured_request.StructuredOutputRequest.grammar, property),
    ),
]
"""All that `Scheduler` and `AsyncScheduler` rely on."""


def proposer_expectation() -> Expectation:
    """What `Proposer` relies on: how the model runner calls a custom class. Imports the runner."""

    def find() -> object:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # pyright: ignore[reportMissingImports]

        source = " ".join(inspect.getsource(GPUModelRunner.propose_draft_token_ids).split())
        found = re.search(r'"custom_class": .*?\.propose\( ?(.*?),? ?\)', source)
        return found and found[1]

    return Expectation(
        "the call of a custom proposer in vLLM's GPUModelRunner",
        "sampled_token_ids, self.input_batch.num_tokens_no_spec, self.input_batch.token_ids_cpu, "
        "slot_mappings=slot_mappings",
        find,
    )


def check(expectations: Iterable[Expectation] = EXPECTATIONS) -> None:
    """Raise PluginError where vLLM's version is not supported, or an interface is not what it was."""
    versions.check("vllm", vllm.__version__)
    problems = [problem for expectation in expectations if (problem := expectation.problem())]
    if problems:
        raise PluginError(
            f"vLLM {vllm.__version__} is not the engine that specgrammar_vllm was made for: "
            f"{'; '.join(problems)}. Supported: {versions.supported('vllm')}, unchanged"
        )
