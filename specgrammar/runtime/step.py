"""One decode step. Read `decode_step` first; everything else in specgrammar serves one of its lines."""

from __future__ import annotations

import time
from dataclasses import dataclass

from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch, TreeProducer
from specgrammar.protocols.staging import StagingStrategy
from specgrammar.protocols.target import TargetModel
from specgrammar.runtime.drafts import current_draft
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.masking import LaunchedStep, MaskPolicy
from specgrammar.runtime.results import step_result
from specgrammar.runtime.trace import Trace


@dataclass(frozen=True)
class StepParts:
    """What a step is made of; all of it lives as long as the engine."""

    producer: TreeProducer
    staging: StagingStrategy
    target: TargetModel
    ledger: Ledger
    masking: MaskPolicy
    vocabulary: Vocabulary
    trace: Trace


def decode_step(parts: StepParts, batch: DecodeBatch, *, want_logprobs: bool = False) -> None:
    """Draft, verify, mask, accept, publish.

    The ledger has resolved the histories that `batch` shows. From `target.verify` on the device is busy and the
    host works under it: the mask policy moves the grammars, builds masks, waits for the logits and accepts. On
    a CPU without a stream the forward runs inside `target.verify`.
    """
    ledger, span = parts.ledger, parts.trace.span
    sessions = [ledger.entries[request.request_id].session for request in batch.requests]
    with span("propose"):
        if parts.producer.needs == "grammar":
            with span("barrier"):
                ledger.advance_pending()
        tree = current_draft(parts.producer.propose(batch), batch, parts.vocabulary, parts.trace)
        staged = parts.staging.stage(tree)
    launched_at = time.perf_counter()
    with span("launch"):
        pending = parts.target.verify(batch, tree)
    verified = parts.masking.verify(
        LaunchedStep(batch, sessions, staged, tree.sampled, pending, want_logprobs, tree.num_nodes, launched_at)
    )
    with span("commit"):
        parts.target.commit(batch, verified.paths)
        ledger.publish(step_result(batch, verified.status, staged.resolve(), verified.paths))
    num_accepted = int(verified.paths.accept_length.sum())
    parts.trace.count(verified.status, tree.cu_nodes, verified.num_rows, num_accepted)
