"""One decode step. Read `decode_step` first; everything else in specgrammar serves one of its lines."""

from __future__ import annotations

from dataclasses import dataclass

from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch, TreeProducer
from specgrammar.protocols.staging import BitmaskAllocator, Device, StagingStrategy
from specgrammar.protocols.target import TargetModel
from specgrammar.runtime.drafts import current_draft
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.results import step_result
from specgrammar.runtime.trace import Trace
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod


@dataclass(frozen=True)
class StepParts:
    """What a step is made of; all of it lives as long as the engine."""

    producer: TreeProducer
    staging: StagingStrategy
    target: TargetModel
    ledger: Ledger
    allocator: BitmaskAllocator
    device: Device
    vocabulary: Vocabulary
    workers: FillWorkers | None
    method: AcceptMethod
    trace: Trace


def decode_step(parts: StepParts, batch: DecodeBatch, *, want_logprobs: bool = False) -> None:
    """Draft, verify, mask, accept, publish.

    The ledger has resolved the histories that `batch` shows. Between `verify` and `wait` the device is busy
    and the host works under it; on a CPU without a stream the forward runs inside `verify`.
    """
    ledger, span = parts.ledger, parts.trace.span
    sessions = [ledger.entries[request.request_id].session for request in batch.requests]
    with span("propose"):
        if parts.producer.needs == "grammar":
            ledger.advance_pending()
        tree = current_draft(parts.producer.propose(batch), batch, parts.vocabulary, parts.trace)
        staged = parts.staging.stage(tree)
    with span("verify"):
        pending = parts.target.verify(batch, tree)
    with span("build"):
        mask = build_grammar_mask(
            sessions,
            staged,
            parts.allocator,
            parts.device,
            parts.vocabulary,
            barrier=ledger.advance_pending,
            workers=parts.workers,
        )
    with mask:
        with span("upload"):
            mask.upload()
        with span("wait"):
            logits = pending.wait()
        with span("apply"):
            mask.apply(logits)
    with span("accept"):
        host = staged.resolve()
        paths = accept(
            host,
            logits,
            mask.status,
            batch.requests,
            method=parts.method,
            sampled=tree.sampled,
            want_logprobs=want_logprobs,
        )
    with span("commit"):
        parts.target.commit(batch, paths)
        ledger.publish(step_result(batch, mask.status, host, paths))
    parts.trace.count(mask.status, tree.cu_nodes, mask.num_rows, int(paths.accept_length.sum()))
