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
from specgrammar.protocols.staging import BitmaskAllocator, Device, Launched, StagedTree
from specgrammar.protocols.target import AcceptedPaths, PendingLogits
from specgrammar.runtime.drafts import check_roots
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.trace import Trace
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import AcceptMethod
from specgrammar.trees.tree import DraftTree, HostTree

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
        batch: its requests; their histories may be those of before an unresolved step.
        sessions: one per request.
        tree: the drafts.
        staged: the same, perhaps still on its way to the host.
        pending: the forward's logits.
        want_logprobs: whether log-probabilities under the mask are to be reported.
        launched_at: when the forward's launch began, `time.perf_counter` seconds.
    """

    batch: DecodeBatch
    sessions: Sequence[GrammarSession]
    tree: DraftTree
    staged: StagedTree
    pending: PendingLogits
    want_logprobs: bool
    launched_at: float


@dataclass(frozen=True)
class Verified:
    """What a step found, or is about to find.

    Attributes:
        paths: the accepted paths and bonus tokens.
        is_known: whether the paths are found for certain, whatever the clock says: replicas have to agree on
            which step waits for which.
        status: int8 `[num_nodes]` of `NodeStatus`. Lazily masked requests have FREE where the grammar was not
            asked, since nothing but the path was looked at.
        num_rows: bitmask rows that were filled.
        num_cut: paths that ended although a child carries their bonus token.
    """

    paths: Launched[AcceptedPaths]
    is_known: bool
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

    Mask and acceptance are launched behind the forward; on a stream the host goes on without them.

    Attributes:
        parts: what it works with.
        why: why it is used although `auto` was asked for; empty where it was not.
    """

    parts: MaskParts
    why: str = ""

    def verify(self, step: LaunchedStep) -> Verified:
        """See `MaskPolicy`."""
        parts = self.parts
        masked, mask = mask_before_drawing(parts, step, step.sessions, lambda: catch_up(parts, step))
        tree, requests = step.staged.resolve(), step.batch.resolved().requests
        sampled, method = step.tree.sampled, parts.method

        def draw() -> AcceptedPaths:
            logits = masked.value()
            return accept(
                tree,
                logits,
                mask.status,
                requests,
                method=method,
                sampled=sampled,
                want_logprobs=step.want_logprobs,
            )

        with parts.trace.span("accept"):
            paths = parts.device.launch(draw, "accept")
        # On an accelerator `accept` waits for the draws, so that the paths are there when it was launched.
        is_known = not parts.device.runs_aside or parts.device.torch_device.type != "cpu"
        return Verified(paths, is_known, mask.status, mask.num_rows)


def catch_up(parts: MaskParts, step: LaunchedStep) -> HostTree:
    """Move histories and grammars to where the step begins, and get its tree; the forward runs meanwhile.

    Raises:
        StaleStepError: a tree that a device made begins with other tokens than the histories end with.
    """
    span = parts.trace.span
    with span("wait"):
        parts.ledger.resolve()
    with span("barrier"):
        parts.ledger.advance_pending()
    with span("resolve"):
        tree = step.staged.resolve()
    if step.tree.host is None:
        check_roots(tree, step.batch.resolved(), step.sessions)
    return tree


def mask_before_drawing(
    parts: MaskParts,
    step: LaunchedStep,
    sessions: Sequence[GrammarSession],
    barrier: Callable[[], object] | None = None,
) -> tuple[Launched[torch.Tensor], GrammarMask]:
    """Build the mask of `sessions` under the forward, launch it behind; the masked logits, and the mask."""
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

    def masked() -> torch.Tensor:
        with mask:  # gives its memory back whatever became of the forward
            logits = step.pending.value()
            mask.apply(logits)
            return logits

    try:
        with span("upload"):
            mask.upload()
        with span("apply"):
            return parts.device.launch(masked, "apply"), mask
    except BaseException:
        mask.discard()
        raise
