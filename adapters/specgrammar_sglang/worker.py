# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""The worker of a registered algorithm: a `TreeProducer` of ours on sglang's V2 worker interface.

One step, like `specgrammar.runtime.step`: draft, launch the verify forward, and under it move the grammars
and build their masks; then sglang samples, and its KV cache keeps the accepted path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_device, get_spec
from sglang.srt.speculative import spec_utils
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.eagle_utils import eagle_sample
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import (
    GrammarTree,
    commit_mamba_states_after_verify,
    move_accept_tokens_to_target_kvcache,
    prepare_mamba_track_for_verify,
    record_stream_for_v2_verify,
)

from specgrammar.errors import StaleStepError
from specgrammar.protocols.spec import DraftGrammar, ProducerContext, TreeProducer
from specgrammar.runtime.compatible import checked_producer
from specgrammar.runtime.device import device_for
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree
from specgrammar_sglang.gates import is_walked_by_us, session_of
from specgrammar_sglang.histories import Histories, Row
from specgrammar_sglang.verify_input import DenseTrees
from specgrammar_sglang.vocabulary import target_vocabulary

Barrier = Callable[[], None]
Publish = Callable[[torch.Tensor], None]


class SpecGrammarWorker(BaseSpecWorker):
    """Drafts on the host, verifies with sglang's target."""

    draft_worker = None
    adaptive_controller = None

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        """As sglang's scheduler calls it; the target's memory is not there yet."""
        super().__init__()
        del gpu_id, nccl_port
        spec = get_spec()
        self._target_worker = target_worker
        self._device = device_for(str(get_device().device))
        self.device: str = str(self._device.torch_device)
        self.server_args = server_args
        self.speculative_num_draft_tokens: int = spec.speculative_num_draft_tokens
        self.speculative_num_steps: int = spec.speculative_num_steps
        self.topk: int = spec.speculative_eagle_topk
        named: Any = SpeculativeAlgorithm.from_string(spec.speculative_algorithm)
        self._algorithm = named.make(self.speculative_num_draft_tokens)
        self._name = named.our_name
        self._histories = Histories()

    def alloc_memory_pool(self, **_: Any) -> None:
        """Take over the target's memory, and make the producer."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self._target_worker.get_memory_pool()
        runner = self._target_worker.model_runner
        config = runner.model_config
        self._vocabulary = target_vocabulary(
            self._target_worker.tokenizer, config.vocab_size, config.hf_eos_token_id
        )
        context = ProducerContext(self._vocabulary, runner.max_running_requests, self._device)
        self.producer: TreeProducer = checked_producer(self._algorithm.make_producer(context), self._name)

    def clear_cache_pool(self) -> None:
        """Forget the requests."""
        self.producer.observe(self._histories.batch((), 0)[1])

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Publish | None = None,
        grammar_barrier: Barrier | None = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One forward of sglang's: a decode step, or the prompts of an extend.

        Args:
            batch: sglang's `ScheduleBatch`.
            on_publish: takes the new lengths as soon as they are known on the stream.
            grammar_barrier: moves the grammars over what the step before committed; None where that is done.
            pp_proxy_tensors: passed to the target.
        """
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        if batch.forward_mode.is_decode():
            return self._decode(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        return self._extend(batch, on_publish, pp_proxy_tensors)

    def _decode(
        self, batch: Any, on_publish: Publish | None, barrier: Barrier | None, pp_proxy_tensors: Any
    ) -> GenerationBatchResult:
        if self.producer.needs == "grammar" and barrier is not None:
            barrier()
        trees = DenseTrees(self._draft(batch), self.speculative_num_draft_tokens)
        self._prepare(batch, trees)
        forward = self._target_worker.forward_batch_generation(
            batch, pp_proxy_tensors=pp_proxy_tensors, is_verify=True
        )
        # From here on the device is busy, and the host works under it.
        mask = None
        if batch.has_grammar:
            mask = spec_utils.build_grammar_vocab_mask(
                reqs=batch.reqs,
                tree=GrammarTree.from_host(*trees.links),
                sampling_info=batch.sampling_info,
                device=batch.seq_lens.device,
                barrier=barrier,
            )
        return self._accept(batch, forward, mask, on_publish)

    def _draft(self, batch: Any) -> HostTree:
        """Ask the producer for a tree per request."""
        latest = self._latest(batch)
        rows = []
        for index, (request, length) in enumerate(zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)):
            rows.append(Row(request, length + 1, latest[index], self._grammar_of(request.grammar)))
        drafting, commits = self._histories.batch(rows, self._algorithm.topology.max_depth)
        self.producer.observe(commits)
        drafted = self.producer.propose(drafting)
        tree = drafted.host
        if tree is None or drafted.step != drafting.step or tree.bs != len(rows):
            raise StaleStepError(
                f"{self._name}: the tree is for step {drafted.step} and {drafted.bs} requests, made on "
                f"{'a device' if tree is None else 'the host'}; expected step {drafting.step}, {len(rows)} "
                "requests, made on the host"
            )
        validate_tree(tree)
        self._histories.drafted(tree)
        return tree

    def _grammar_of(self, grammar: Any) -> DraftGrammar | None:
        """Where a request's grammar stands, for a producer that reads it and while it restricts something."""
        if self.producer.needs != "grammar" or not is_walked_by_us(grammar):
            return None
        session = session_of(grammar, self._vocabulary)
        return session if session is not None and session.engaged else None

    def _latest(self, batch: Any) -> list[list[int]]:
        """What the step before committed for each request: waits for it where it is still in flight."""
        before = batch.spec_info
        if before is None or before.accept_tokens is None:
            return [[]] * len(batch.reqs)
        tokens = before.accept_tokens.view(len(batch.reqs), -1).tolist()
        return [row[:length] for row, length in zip(tokens, before.accept_lens.tolist(), strict=True)]

    def _prepare(self, batch: Any, trees: DenseTrees) -> None:
        """Turn a decode batch of sglang's into a verify batch."""
        width = self.speculative_num_draft_tokens
        verify_input = trees.verify_input(batch.seq_lens, batch.seq_lens_cpu, self._device)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = verify_input.draft_token
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + width,
            batch_size=len(batch.reqs),
            draft_token_num=width,
            device=self.device,
        )
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = verify_input

    def _accept(self, batch: Any, forward: Any, mask: Any, on_publish: Publish | None) -> GenerationBatchResult:
        """Sample, publish the new lengths, and keep the accepted path's KV."""
        watermarks = self._target_worker.model_runner.watermark_state
        predict, accept_lens, accept_index = eagle_sample(
            batch.spec_info, batch, forward.logits_output, mask, watermark_state=watermarks
        )
        new_seq_lens = batch.seq_lens + accept_lens
        commit_mamba_states_after_verify(
            self._target_worker, batch, accept_lens, accept_index, self.speculative_num_draft_tokens
        )
        tokens = predict[accept_index]
        if watermarks is not None and batch.sampling_info.has_watermark_candidates:
            watermarks.append_speculative(batch.req_pool_indices, tokens, accept_lens)
        move_accept_tokens_to_target_kvcache(
            batch, accept_index, accept_lens - 1, self.token_to_kv_pool_allocator
        )
        if batch.return_logprob:
            compute_spec_logprobs(batch, forward.logits_output, predict, accept_index=accept_index)
        if on_publish is not None:
            on_publish(new_seq_lens)
        batch.forward_mode = ForwardMode.DECODE
        return self._result(forward, tokens.flatten(), tokens.flatten(), accept_lens, new_seq_lens)

    def _extend(self, batch: Any, on_publish: Publish | None, pp_proxy_tensors: Any) -> GenerationBatchResult:
        """Run prompts; each request's first token counts as one that a step committed."""
        forward = self._target_worker.forward_batch_generation(batch, pp_proxy_tensors=pp_proxy_tensors)
        bs, width = len(batch.reqs), self.speculative_num_draft_tokens
        new_seq_lens = batch.seq_lens.clone()
        tokens = torch.zeros(bs, width, dtype=torch.int32, device=self.device)
        tokens[:, 0] = forward.next_token_ids
        accept_lens = torch.ones(bs, dtype=torch.int32, device=self.device)
        if on_publish is not None:
            on_publish(new_seq_lens)
        return self._result(forward, forward.next_token_ids, tokens.flatten(), accept_lens, new_seq_lens)

    def _result(
        self,
        forward: Any,
        next_token_ids: torch.Tensor,
        accept_tokens: torch.Tensor,
        accept_lens: torch.Tensor,
        new_seq_lens: torch.Tensor,
    ) -> GenerationBatchResult:
        width = self.speculative_num_draft_tokens
        return GenerationBatchResult(
            logits_output=forward.logits_output,
            next_token_ids=next_token_ids,
            can_run_cuda_graph=forward.can_run_cuda_graph,
            accept_lens=accept_lens,
            new_seq_lens=new_seq_lens,
            next_draft_input=NgramVerifyInput(
                draft_token_num=width,
                new_seq_lens=new_seq_lens,
                accept_tokens=accept_tokens,
                accept_lens=accept_lens,
            ),
            speculative_num_draft_tokens=width,
        )

    # sglang offers these to its n-gram workers alone.

    def add_external_corpus(self, corpus_id: str, token_chunks: list[list[int]]) -> NoReturn:
        """Corpora of sglang's n-gram format are not taken."""
        raise NotImplementedError(f"{self._name} takes no external corpora; corpus {corpus_id!r} is not added")

    def remove_external_corpus(self, corpus_id: str) -> NoReturn:
        """There is none."""
        raise NotImplementedError(f"{self._name} has no external corpus {corpus_id!r}")

    def list_external_corpora(self) -> dict[str, int]:
        """None."""
        return {}
