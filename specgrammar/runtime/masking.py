"""From a launched forward to accepted paths: where a step's grammar work is done, and when.

Two policies give the same tokens. `eager` (here) walks each tree under the forward, masks the rows of all live
nodes and samples from them. `lazy` (`runtime.lazy`) samples first and masks only where the target chose what
the grammar forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import BitmaskAllocator, Device, StagedTree
from specgrammar.protocols.target import AcceptedPaths, PendingLogits
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.trace import Trace
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod
from specgrammar.trees.tree import SampledProposals

PolicyName = Literal["eager", "lazy"]


@dataclass(frozen=True)
class MaskParts:
    """What masking works with; all of it lives as long as the engine."""

    ledger: Ledger
    allocator: BitmaskAllocator
    device: Device
    vocabulary: Vocabulary
    workers: FillWorkers | None
    method: AcceptMethod
    trace: Trace


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose forward has been launched.

    Attributes:
        batch: its requests.
        sessions: one per request.
        staged: the draft tree, perhaps still on its way to the host.
        sampled: the distributions that its nodes were drawn from, if they were.
        pending: the forward's logits.
        want_logprobs: whether log-probabilities under the mask are to be reported.
        num_nodes: of all trees.
        launched_at: when the forward's launch began, `time.perf_counter` seconds.
    """

    batch: DecodeBatch
    sessions: Sequence[GrammarSession]
    staged: StagedTree
    sampled: SampledProposals | None
    pending: PendingLogits
    want_logprobs: bool
    num_nodes: int
    launched_at: float


@dataclass(frozen=True)
class Verified:
    """What a step found.

    Attributes:
        paths: the accepted paths and bonus tokens.
        status: int8 `[num_nodes]` of `NodeStatus`. Lazily masked requests have FREE where the grammar was not
            asked, since nothing but the path was looked at.
        num_rows: bitmask rows that were filled.
        num_cut: paths that ended although a child carries their bonus token.
    """

    paths: AcceptedPaths
    status: NDArray[np.int8]
    num_rows: int
    num_cut: int = 0


class MaskPolicy(Protocol):
    """Decides which rows are masked; the committed tokens do not depend on it."""

    def verify(self, step: LaunchedStep) -> Verified:
        """Move the grammars over what earlier steps committed, then find the paths that the target takes."""
        ...


@dataclass(frozen=True)
class EagerMasking:
    """Mask every live node's row, then accept: the grammar's work is done under the forward.

    Attributes:
        parts: what it works with.
        why: why it is used although `auto` was asked for; empty where it was not.
    """

    parts: MaskParts
    why: str = ""

    def verify(self, step: LaunchedStep) -> Verified:
        """See `MaskPolicy`."""
        parts, span = self.parts, self.parts.trace.span

        def settle() -> None:
            with span("barrier"):
                parts.ledger.advance_pending()
            with span("resolve"):
                step.staged.resolve()

        logits, mask = mask_before_drawing(parts, step, step.sessions, settle)
        with span("accept"):
            paths = accept(
                step.staged.resolve(),
                logits,
                mask.status,
                step.batch.requests,
                method=parts.method,
                sampled=step.sampled,
                want_logprobs=step.want_logprobs,
            )
        return Verified(paths, mask.status, mask.num_rows)


def mask_before_drawing(
    parts: MaskParts,
    step: LaunchedStep,
    sessions: Sequence[GrammarSession],
    barrier: Callable[[], None] | None = None,
) -> tuple[torch.Tensor, GrammarMask]:
    """Build the mask of `sessions` under the forward, apply it behind; the masked logits, and the used mask."""
    span = parts.trace.span
    with span("build"):
        mask = build_grammar_mask(
            sessions,
            step.staged,
            parts.allocator,
            parts.device,
            parts.vocabulary,
            barrier=barrier,
            workers=parts.workers,
        )
    with mask:
        with span("upload"):
            mask.upload()
        with span("apply"):  # launched: on a device whose work runs aside the host only waits for it
            applied = parts.device.launch(lambda: mask.apply(step.pending.value()), "apply")
        with span("wait"):
            logits = step.pending.wait()
            applied.wait() if logits.device.type == "cpu" else applied.value()
    return logits, mask
