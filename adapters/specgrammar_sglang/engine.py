"""The sglang that is supported, and what of it the adapter relies on, checked when it is loaded.

Most of it is no public interface, so another version may change it. It is then refused at its start, with what
changed, and not found out in the decode loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from specgrammar.errors import PluginError

VERSIONS = ("0.5.23",)
"""The versions of sglang that the adapter was tested with."""


@dataclass(frozen=True)
class Interface:
    """Something of sglang's that is relied on.

    Attributes:
        path: `module:name`.
        parameters: names that it takes; of a class, its constructor.
        members: what a class or an instance of it has.
        example: what an instance is made with whose members are looked at; None looks at the class.
    """

    path: str
    parameters: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    example: tuple[Any, ...] | None = None

    def problem(self) -> str:
        """What is not as expected; empty where all is."""
        module, _, name = self.path.partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            return f"{self.path} is not there ({error})"
        if self.parameters and (lacking := _lacking(self.parameters, inspect.signature(found).parameters)):
            return f"{self.path} takes no {lacking}"
        if lacking := _lacking(self.members, _members(found if self.example is None else found(*self.example))):
            return f"{self.path} has no {lacking}"
        return ""


_BASE = "sglang.srt.constrained.base_grammar_backend"
_SPEC = "sglang.srt.speculative"

GRAMMAR = (
    Interface(
        f"{_BASE}:BaseGrammarObject",
        members=(
            "accept_token",
            "rollback",
            "is_terminated",
            "allocate_vocab_mask",
            "fill_vocab_mask",
            "fill_vocab_mask_batched",
            "move_vocab_mask",
            "apply_vocab_mask",
            "copy",
            "finished",
        ),
    ),
    Interface(
        f"{_BASE}:BaseGrammarBackend",
        members=(
            "dispatch_json",
            "dispatch_regex",
            "dispatch_ebnf",
            "dispatch_structural_tag",
            "is_support_token_filter",
            "set_token_filter",
        ),
    ),
    Interface(f"{_BASE}:InvalidGrammarObject", parameters=("error_message",)),
    Interface(f"{_BASE}:GrammarStats", parameters=("dispatch_type", "is_cache_hit")),
    Interface(f"{_BASE}:register_grammar_backend", parameters=("name", "init_func")),
    Interface(f"{_BASE}:GRAMMAR_BACKEND_REGISTRY"),
    Interface("sglang.srt.server_args:add_grammar_backend_choices"),
    Interface("sglang.srt.server_args:GRAMMAR_BACKEND_CHOICES"),
    Interface(
        "sglang.srt.constrained.reasoner_grammar_backend:ReasonerGrammarBackend",
        parameters=("grammar_backend", "reasoning_parser", "tokenizer", "enable_strict_thinking"),
    ),
    Interface(
        "sglang.srt.constrained.reasoner_grammar_backend:ReasonerGrammarObject",
        parameters=("grammar", "think_end_ids", "enable_token_filter"),
        members=("_is_thinking", "_matched_think_end_tokens", "reasoning_in_grammar", "enable_token_filter"),
        example=(None, (1,)),
    ),
    Interface("sglang.srt.utils.token_sequence_matcher:TokenSequenceMatcher", members=("advance", "__len__")),
    Interface(
        "sglang.srt.parser.reasoning_parser:ReasoningParser",
        parameters=("model_type", "stream_reasoning", "tokenizer"),
    ),
    Interface(
        "sglang.srt.constrained.torch_ops.token_filter_torch_ops:set_token_filter_torch",
        parameters=("vocab_mask", "token_ids", "batch_idx", "is_allowed", "reset_vocab_mask"),
    ),
    Interface("sglang.srt.runtime_context:get_serving"),
)
"""For the grammar backends."""

MASK = (
    Interface(
        f"{_SPEC}.spec_utils:build_grammar_vocab_mask",
        parameters=("reqs", "tree", "sampling_info", "device", "barrier"),
    ),
    Interface(f"{_SPEC}.spec_utils:GrammarTree", members=("resolve", "from_host")),
    Interface("sglang.srt.plugins.hook_registry:HookRegistry", members=("register", "apply_hooks", "_hooks")),
    Interface("sglang.srt.plugins.hook_registry:HookType", members=("AROUND",)),
)
"""For the masks of speculative workers."""

ALGORITHM = (
    Interface(
        f"{_SPEC}.spec_info:SpeculativeAlgorithm.register",
        parameters=("name", "supports_overlap", "validate_server_args", "spec_class"),
    ),
    Interface(
        f"{_SPEC}.spec_info:SpeculativeAlgorithm",
        members=("create_future_map", "need_topk", "carries_draft_hidden_states", "get_platform_worker_cls"),
    ),
    Interface(f"{_SPEC}.spec_registry:CustomSpecAlgo", parameters=("name", "factory")),
    Interface(f"{_SPEC}.spec_registry:get_spec", parameters=("name",)),
    Interface("sglang.srt.arg_groups.overrides:declare_resolution"),
    Interface("sglang.srt.arg_groups.overrides:resolving_view"),
)
"""For the registered algorithms."""

WORKER = (
    Interface(f"{_SPEC}.base_spec_worker:BaseSpecWorker", members=("draft_worker", "target_worker")),
    Interface(
        f"{_SPEC}.ngram_info:NgramVerifyInput",
        parameters=(
            "draft_token",
            "custom_mask",
            "positions",
            "retrieve_index",
            "retrieve_next_token",
            "retrieve_next_sibling",
            "draft_token_num",
            "new_seq_lens",
            "accept_tokens",
            "accept_lens",
        ),
    ),
    Interface(
        f"{_SPEC}.eagle_utils:eagle_sample",
        parameters=("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state"),
    ),
    Interface(
        f"{_SPEC}.spec_utils:move_accept_tokens_to_target_kvcache",
        parameters=("batch", "accept_index", "num_correct_drafts", "token_to_kv_pool_allocator"),
    ),
    Interface(
        f"{_SPEC}.spec_utils:commit_mamba_states_after_verify",
        parameters=("target_worker", "batch", "accept_lens", "accept_index", "draft_token_num"),
    ),
    Interface(f"{_SPEC}.spec_utils:prepare_mamba_track_for_verify", parameters=("batch",)),
    Interface(f"{_SPEC}.spec_utils:record_stream_for_v2_verify", parameters=("batch", "verify_input")),
    Interface(
        "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs_func",
        parameters=("req_pool_indices", "req_to_token", "start_offset", "end_offset", "draft_token_num"),
    ),
    Interface(
        "sglang.srt.managers.utils:GenerationBatchResult",
        parameters=(
            "logits_output",
            "next_token_ids",
            "accept_lens",
            "new_seq_lens",
            "next_draft_input",
            "can_run_cuda_graph",
            "speculative_num_draft_tokens",
        ),
    ),
    Interface("sglang.srt.model_executor.forward_batch_info:ForwardMode", members=("TARGET_VERIFY", "DECODE")),
    Interface("sglang.srt.layers.logprob_processor:compute_spec_logprobs", parameters=("accept_index",)),
    Interface("sglang.srt.runtime_context:get_spec"),
    Interface("sglang.srt.runtime_context:get_device"),
)
"""For the worker of a registered algorithm; checked when that is chosen, as it loads sglang's scheduler."""


def check_version() -> None:
    """Raise PluginError unless the installed sglang is one of `VERSIONS`."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise PluginError(f"specgrammar_sglang: sglang is not installed; {_supported()}") from None
    if found not in VERSIONS:
        raise PluginError(f"specgrammar_sglang: sglang {found} is not supported; {_supported()}")


def check_interfaces(interfaces: Iterable[Interface]) -> None:
    """Raise PluginError naming everything that is not as the adapter expects it."""
    problems = [problem for interface in interfaces if (problem := interface.problem())]
    if problems:
        raise PluginError(f"specgrammar_sglang: this sglang has changed: {'; '.join(problems)}; {_supported()}")


def _members(found: Any) -> set[str]:
    """What a class or an object has, annotated fields too; `dir` hides the methods of an enum."""
    classes = found.__mro__ if isinstance(found, type) else ()
    return {
        *dir(found),
        *(name for kind in classes for name in (*vars(kind), *vars(kind).get("__annotations__", ()))),
    }


def _supported() -> str:
    return f"supported: {', '.join(VERSIONS)} (pip install sglang=={VERSIONS[-1]})"


def _lacking(expected: Iterable[str], found: Iterable[str]) -> str:
    names = set(found)
    return ", ".join(name for name in expected if name not in names)
