"""vLLM's schedulers with our grammars and our walks.

    LLM(..., scheduler_cls="specgrammar_vllm.Scheduler")

The engine core makes the manager first, then the scheduler from it. Here, before any request, our backend is
put into the manager, which compiles grammars with it, and vLLM's scheduler is handed `Walks` in its place.
"""

from __future__ import annotations

from typing import Any

from specgrammar.errors import ConfigError
from specgrammar_vllm import engine
from specgrammar_vllm.ahead import FillThreads
from specgrammar_vllm.backend import SessionBackend
from specgrammar_vllm.engine import VllmAsyncScheduler, VllmScheduler
from specgrammar_vllm.forced import forced_drafts_of
from specgrammar_vllm.grammar import SessionGrammar
from specgrammar_vllm.options import Options
from specgrammar_vllm.vocabularies import as_specgrammar_reads_it
from specgrammar_vllm.walks import Walks

engine.check()
engine.StructuredOutputBackend.register(SessionBackend)
engine.StructuredOutputGrammar.register(SessionGrammar)


def take_over(vllm_config: Any, manager: Any) -> Walks:
    """Put our backend into vLLM's manager and return what its scheduler is to call instead.

    Raises:
        ConfigError, ModelError, PluginError: see `SessionBackend` and `Options`.
    """
    if vllm_config.model_config.is_diffusion:
        raise ConfigError("specgrammar_vllm: diffusion models have no order of tokens for a grammar to follow")
    if vllm_config.model_config.skip_tokenizer_init:
        raise ConfigError("specgrammar_vllm: grammars need a tokenizer; leave out skip_tokenizer_init")
    options = Options.of(vllm_config.additional_config)
    max_drafts = vllm_config.num_speculative_tokens
    backend = SessionBackend(
        options,
        manager.tokenizer,
        vllm_config.model_config.get_vocab_size(),
        compact_json=vllm_config.structured_outputs_config.disable_any_whitespace,
        max_drafts=max_drafts,
    )
    manager.backend = backend
    rows = backend.allocate_token_bitmask(vllm_config.scheduler_config.max_num_seqs * (1 + max_drafts))
    size = vllm_config.model_config.get_vocab_size()
    forced = forced_drafts_of(
        vllm_config, options.forced_drafts, lambda: as_specgrammar_reads_it(manager.tokenizer, size, ())
    )
    return Walks(manager, rows.numpy(), FillThreads(options.fill_threads), forced)


class _WithOurWalks:
    """What both schedulers do beside vLLM's, which is behind them in the order of their bases."""

    requests: dict[str, Any]
    structured_output_manager: Any

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, structured_output_manager: Any, *args: Any, **kwargs: Any
    ) -> None:
        """As vLLM's. Raises what `check` and `take_over` raise."""
        self.check(vllm_config)
        walks = take_over(vllm_config, structured_output_manager)
        super().__init__(vllm_config, kv_cache_config, walks, *args, **kwargs)  # type: ignore[call-arg]  # vLLM's

    @staticmethod
    def check(vllm_config: Any) -> None:
        """Raise ConfigError where the scheduler does not go with the rest of the configuration."""
        raise NotImplementedError

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule, and begin to fill rows where no token is outstanding that would move a grammar first."""
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]  # vLLM's
        if output.has_structured_output_requests and not output.pending_structured_output_tokens:
            request_ids = [
                name
                for name in output.num_scheduled_tokens
                if (request := self.requests.get(name)) is not None
                and request.use_structured_output
                and not request.is_prefill_chunk
            ]
            self.structured_output_manager.begin(
                self.requests, request_ids, output.scheduled_spec_decode_tokens
            )
        return output

    def shutdown(self) -> None:
        """End our threads, then what vLLM's scheduler ends."""
        self.structured_output_manager.close()
        super().shutdown()  # type: ignore[misc]  # vLLM's


class Scheduler(_WithOurWalks, VllmScheduler):
    """vLLM's synchronous scheduler; see the module."""

    @staticmethod
    def check(vllm_config: Any) -> None:
        """See `_WithOurWalks`."""
        if vllm_config.scheduler_config.async_scheduling:
            raise ConfigError(
                "specgrammar_vllm.Scheduler is synchronous, and async_scheduling is on; pass "
                "scheduler_cls='specgrammar_vllm.AsyncScheduler', or async_scheduling=False"
            )


class AsyncScheduler(_WithOurWalks, VllmAsyncScheduler):
    """vLLM's asynchronous scheduler; see the module."""

    @staticmethod
    def check(vllm_config: Any) -> None:
        """See `_WithOurWalks`; drafts from the host are refused as well."""
        speculative = vllm_config.speculative_config
        if speculative is not None and speculative.method == "custom_class":
            raise ConfigError(
                "specgrammar_vllm.AsyncScheduler cannot work with a proposer on the host (custom_class): it "
                "drafts when a step's tokens are known, and the next step is scheduled before that; pass "
                "scheduler_cls='specgrammar_vllm.Scheduler' and async_scheduling=False"
            )
        if not vllm_config.scheduler_config.async_scheduling:
            raise ConfigError(
                "specgrammar_vllm.AsyncScheduler needs async_scheduling, which is off (vLLM turns it off on a "
                "CPU); pass scheduler_cls='specgrammar_vllm.Scheduler'"
            )
