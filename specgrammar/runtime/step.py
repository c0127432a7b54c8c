"""One decode step. Read `decode_step` first; everything else in specgrammar serves one of its lines."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch, TreeProducer
from specgrammar.protocols.staging import Device, StagingStrategy
from specgrammar.protocols.target import TargetModel
from specgrammar.runtime.drafts import current_draft, known_tree
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.masking import LaunchedStep, MaskPolicy
from specgrammar.runtime.prune import can_prune, prune_illegal
from specgrammar.runtime.results import PublishedStep
from specgrammar.runtime.trace import Trace


@dataclass(frozen=True)
class StepParts:
    """What a step is made of; all of it lives as long as the engine."""

    producer: TreeProducer
    staging: StagingStrategy
    target: TargetModel
    ledger: Ledger
    masking: MaskPolicy
    device: Device
    vocabulary: Vocabulary
    max_depth: int
    trace: Trace


def decode_step(parts: StepParts, batch: DecodeBatch, *, want_logprobs: bool = False) -> PublishedStep:
    """Draft, verify, mask, accept, publish; returns what was published.

    From `target.verify` on the device is busy and the host works under it: the mask policy waits for the step
    before where that is unresolved, moves the grammars and builds masks. What comes behind the forward (mask,
    acceptance, the cache that is kept) is launched, too, and on a stream the next step may begin before it is
    done. On a CPU without a stream everything runs inside its launch.
    """
    ledger, span = parts.ledger, parts.trace.span
    sessions = [ledger.entries[request.request_id].session for request in batch.requests]
    with span("propose"):
        if parts.producer.needs == "grammar":
            with span("barrier"):
                ledger.advance_pending()
        begin = time.perf_counter()
        drafted = parts.producer.propose(batch)
        drafting_s = time.perf_counter() - begin
        tree = current_draft(drafted, batch, parts.vocabulary, parts.device, parts.trace)
        staged = parts.staging.stage(tree)
        if can_prune(tree, parts.producer.needs, parts.device):
            with span("barrier"):
                ledger.advance_pending()
            with span("prune"):
                tree = prune_illegal(tree, known_tree(tree, staged, batch, sessions), sessions)
                staged = parts.staging.stage(tree)
    launched_at = time.perf_counter()
    with span("launch"):
        pending = parts.target.verify(batch, tree)
    step = LaunchedStep(batch, sessions, tree, staged, pending, want_logprobs, launched_at)
    verified = parts.masking.verify(step)
    with span("commit"):
        if verified.is_known:
            verified.paths.value()  # a failed step is not committed
        parts.target.commit(batch, verified.paths)
        has_grammar = any(session.cursor is not None for session in sessions)
        published = PublishedStep(
            batch.step,
            tuple(request.request_id for request in batch.requests),
            staged.resolve(),
            verified.status,
            verified.paths,
            verified.is_known,
            1 + min(parts.max_depth, int(np.diff(tree.cu_nodes).max()) - 1),
            has_grammar,
            tree,
        )
        ledger.publish(published)
    parts.trace.count(verified.status, tree.cu_nodes, verified.num_rows, batch.unresolved is not None)
    waited = verified.is_known and batch.unresolved is None
    parts.trace.count_drafts(
        published,
        drafting_s if tree.host is not None or not parts.device.runs_aside else None,
        time.perf_counter() - launched_at if waited else None,
    )
    return published
