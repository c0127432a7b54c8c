# pyright: reportMissingImports=false
"""A small scheduler around a worker of sglang's V2 interface, with our transformers target as its model.

The worker, its verify input, the acceptance, the KV moves and slots, the relay between steps and the result
processor are sglang's own, kernels among them (interpreted). What stands in is the model runner: `TargetWorker`
has sglang's slots, but runs a `TargetModel` of ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.overlap_utils import RelayPayload
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from transformers import LlamaConfig

from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.protocols.target import AcceptedPaths
from specgrammar.runtime.outcome import Outcome
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.convert import full_masks, positions
from specgrammar.trees.tree import DraftTree, HostTree
from specgrammar_transformers import TransformersAdapter

CONTEXT = 512


class Req(SimpleNamespace):
    """What the worker and the result processor read of a request; `grammar` is one of sglang's objects."""

    def __init__(self, rid: str, prompt: Sequence[int], grammar: Any, max_new_tokens: int) -> None:
        params = SimpleNamespace(max_new_tokens=max_new_tokens, temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
        super().__init__(
            rid=rid,
            origin_input_ids_unpadded=list(prompt),
            output_ids=[],
            grammar=grammar,
            sampling_params=params,
            is_retracted=False,
            inflight_middle_chunks=0,
            is_over=False,
        )

    def finished(self) -> bool:
        """Whether its end was processed."""
        return bool(self.is_over)


class TargetWorker:
    """sglang's `TpModelWorker`, as far as a speculative worker uses it.

    Attributes:
        log: what happened, in order, for tests of the order.
    """

    def __init__(self, adapter: TransformersAdapter, max_requests: int) -> None:
        self.tokenizer = adapter.tokenizer
        self.log: list[str] = []
        self._target, self._width = adapter.target, adapter.target.vocab_size
        config = SimpleNamespace(
            vocab_size=self._width,
            hf_eos_token_id=set(adapter.vocabulary.stop_ids),
            hf_config=LlamaConfig(),
            linear_attn_registry_result=None,
        )
        self.model_runner = SimpleNamespace(
            model_config=config, max_running_requests=max_requests, watermark_state=None
        )
        # Slot 0 is nobody's, as in sglang; every request has a row of slots.
        slots = torch.arange(1, 1 + max_requests * CONTEXT, dtype=torch.int32).view(max_requests, CONTEXT)
        self.req_to_token_pool = SimpleNamespace(req_to_token=slots)
        self._verifying: Any = None

    def get_memory_pool(self) -> tuple[Any, Any]:
        return self.req_to_token_pool, SimpleNamespace(get_kvcache=lambda: self)

    def forward_batch_generation(
        self, batch: Any, pp_proxy_tensors: Any = None, is_verify: bool = False
    ) -> SimpleNamespace:
        assert pp_proxy_tensors is None
        self.log.append("forward")
        return self._verify(batch) if is_verify else self._extend(batch)

    def _verify(self, batch: Any) -> SimpleNamespace:
        """The logits of a verify batch; what the worker says of its trees has to agree with their links."""
        info = batch.spec_info
        bs, width = info.retrieve_next_token.shape
        tokens = info.draft_token.view(bs, width)
        links = [part.numpy() for part in (tokens, info.retrieve_next_token, info.retrieve_next_sibling)]
        linked = {(b, int(i)) for b in range(bs) for part in links[1:] for i in part[b] if i >= 0}
        drafted = links[0].copy()
        for b in range(bs):
            for i in range(1, width):
                if (b, i) not in linked:
                    drafted[b, i] = -1  # padding, for our target
        tree = HostTree.from_dense(drafted, links[1], links[2])
        prefix = batch.seq_lens.numpy()
        assert torch.equal(info.positions, torch.from_numpy(positions(tree, prefix)))
        masks = np.concatenate([mask.ravel() for mask in full_masks(tree, prefix)])
        assert torch.equal(info.custom_mask.bool(), torch.from_numpy(masks))
        assert torch.equal(info.retrieve_index, torch.arange(bs * width).view(bs, width))
        views = tuple(
            RequestView(req.rid, [0] * length + [int(row[0])], 0, width, SamplingParams())
            for req, length, row in zip(batch.reqs, prefix.tolist(), drafted, strict=True)
        )
        self._verifying = decoding = DecodeBatch(0, views)
        self._slots = batch.out_cache_loc.view(bs, width)
        logits = self._target.verify(decoding, DraftTree.from_host(0, tree)).wait()
        return self._result(logits[:, : self._width].clone())

    def _extend(self, batch: Any) -> SimpleNamespace:
        """Run prompts whole, and choose each request's first token under its grammar."""
        views = []
        for req in batch.reqs:
            prompt = req.origin_input_ids_unpadded
            self._target.add(req.rid, prompt)
            views.append(RequestView(req.rid, prompt, len(prompt), 0, SamplingParams()))
        decoding = DecodeBatch(0, tuple(views))
        tree = DraftTree.from_host(0, HostTree.roots([view.tokens[-1] for view in views]))
        logits = self._target.verify(decoding, tree).wait()[:, : self._width].clone()
        bs = len(views)
        self._commit(decoding, np.zeros((bs, 1), np.int64), np.zeros(bs, np.int64))
        for row, req in zip(logits, batch.reqs, strict=True):
            if req.grammar is not None:
                rows = req.grammar.allocate_vocab_mask(self._width, 1, "cpu")
                req.grammar.fill_vocab_mask(rows, 0)
                req.grammar.apply_vocab_mask(logits=row[None], vocab_mask=rows)
        return self._result(logits, logits.argmax(-1))

    @staticmethod
    def _result(logits: torch.Tensor, tokens: torch.Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(
            logits_output=SimpleNamespace(next_token_logits=logits),
            next_token_ids=tokens,
            can_run_cuda_graph=False,
        )

    def move_kv_cache(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """sglang keeps the accepted path: which nodes those are follows from the slots that it moves."""
        bs, width = self._slots.shape
        kept = [[] for _ in range(bs)]  # type: list[list[int]]
        for target, origin in zip(to.tolist(), source.tolist(), strict=True):
            if origin:
                (b,), (node,) = np.nonzero(self._slots.numpy() == origin)
                assert target == self._slots[b, len(kept[b])], "the path is packed to the front"
                kept[b].append(int(node))
        index = np.full((bs, width), -1, np.int64)
        for row, nodes in zip(index, kept, strict=True):
            row[: len(nodes)] = nodes
        self._commit(self._verifying, index, np.array([len(nodes) - 1 for nodes in kept]))
        self.log.append("keep")

    def _commit(self, decoding: DecodeBatch, index: Any, length: Any) -> None:
        paths = AcceptedPaths(index, length, np.zeros(len(length), np.int64))
        self._target.commit(decoding, Outcome(lambda: paths))

    def forget(self, rid: str) -> None:
        """Free a request's cache."""
        self._target.remove(rid)


class Loop:
    """sglang's event loop, with overlap or without: requests join when there is room, and leave when they end.

    Attributes:
        num_steps: decode steps so far.
    """

    def __init__(
        self, worker: Any, target: TargetWorker, algorithm: Any, *, capacity: int, overlap: bool
    ) -> None:
        self._worker, self._target, self._overlap, self._capacity = worker, target, overlap, capacity
        self._processor = object.__new__(SchedulerBatchResultProcessor)
        self._queue: deque[tuple[Any, Any]] = deque()
        self._relay = algorithm.create_future_map(torch.device("cpu"), target.req_to_token_pool)
        self._pool: dict[str, int] = {}
        self.num_steps = 0

    def run(self, requests: Sequence[Req]) -> None:
        """Until all requests have ended."""
        waiting, running = deque(requests), list[Req]()
        while True:
            if not self._overlap and self._queue:
                self._process()
            for req in running:
                if req.finished():
                    self._target.forget(req.rid)
                    del self._pool[req.rid]
            running = [req for req in running if not req.finished()]
            if waiting and len(running) < self._capacity:
                new = [waiting.popleft() for _ in range(min(len(waiting), self._capacity - len(running)))]
                for req in new:
                    self._pool[req.rid] = min(set(range(self._capacity)) - set(self._pool.values()))
                running += new
                lengths = torch.tensor([len(req.origin_input_ids_unpadded) for req in new])
                self._launch(ForwardMode.EXTEND, lengths, new)
            elif running:
                self._launch(ForwardMode.DECODE, None, running)
                self.num_steps += 1
            elif not self._queue:
                return
            if self._overlap and (len(self._queue) > 1 or not running):
                self._process()

    def _launch(self, mode: ForwardMode, seq_lens: torch.Tensor | None, requests: list[Req]) -> None:
        indices = torch.tensor([self._pool[req.rid] for req in requests])
        spec_info = None
        if seq_lens is None:  # what the step before published and stashed, by the requests' rows
            spec_info = SimpleNamespace(future_indices=indices, accept_tokens=None, accept_lens=None)
            seq_lens = self._relay.new_seq_lens_buf[indices]
        batch = SimpleNamespace(
            reqs=requests,
            forward_mode=mode,
            has_grammar=any(req.grammar is not None for req in requests),
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            req_pool_indices=indices,
            req_to_token_pool=self._target.req_to_token_pool,
            input_ids=None,
            out_cache_loc=None,
            spec_info=spec_info,
            device="cpu",
            return_logprob=False,
            mamba_track_indices=None,
            sampling_info=SimpleNamespace(
                vocab_size=self._target._width,
                grammar_mask=None,
                is_all_greedy=True,
                acc_additive_penalties=None,
                acc_scaling_penalties=None,
                logit_bias=None,
                has_watermark_candidates=False,
            ),
        )
        if spec_info is not None:
            self._relay._resolve_spec_extras(batch)
        more: dict[str, Any] = {}
        if self._overlap:
            more = {"on_publish": partial(self._publish, indices), "grammar_barrier": self._barrier}
        result = self._worker.forward_batch_generation(batch, **more)
        assert batch.forward_mode == mode
        if not self._overlap:
            self._publish(indices, result.new_seq_lens)
        self._relay.stash(indices, RelayPayload.from_ngram(result.next_draft_input))
        self._queue.append((SimpleNamespace(**vars(batch)), result))

    def _publish(self, indices: torch.Tensor, new_seq_lens: torch.Tensor) -> None:
        self._target.log.append("publish")
        self._relay.publish(indices, new_seq_lens)

    def _barrier(self) -> None:
        self._target.log.append("barrier")
        for batch, result in self._queue:
            self._processor.advance_grammar_fsm(result, batch)

    def _process(self) -> None:
        """Append what a step committed, as sglang's `process_batch_result_*` do."""
        batch, result = self._queue.popleft()
        self._processor.advance_grammar_fsm(result, batch)
        lens, width = result.accept_lens.tolist(), result.speculative_num_draft_tokens
        tokens = result.next_token_ids.tolist()
        for i, req in enumerate(batch.reqs):
            if req.finished():
                continue
            if batch.forward_mode.is_extend():
                new = [tokens[i]]
            else:
                new = tokens[i * width : i * width + lens[i]]
                if req.grammar is not None:
                    new = result.grammar_retained_tokens[i]
            assert not hasattr(req, "to_finish"), req.to_finish
            self._append(req, new)

    def _append(self, req: Req, tokens: list[int]) -> None:
        for token in tokens:
            req.output_ids.append(token)
            ends = token in self._target.model_runner.model_config.hf_eos_token_id
            if ends or len(req.output_ids) == req.sampling_params.max_new_tokens:
                req.is_over = True
                return
