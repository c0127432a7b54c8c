"""Lazy masking: sample first, and ask the grammar about what the target chose.

A tree has many live nodes and the target takes one path. So each row is sampled unmasked, the grammar walks the
path that the choices take, and a row is filled, uploaded, applied and sampled again only where a choice is
illegal, which for a model that knows its format is rare. Nothing is hidden under the forward and little is left
to hide.

*Exactness.* A greedy or temperature-only draw is an argmax: of the logits x_i, or of x_i / T + g_i with noise
g_i that is keyed by seed, position and token (Gumbel-max), so that it does not depend on the mask. Let i be the
argmax over all tokens and L the legal ones. If i is in L it is the argmax over L: what nothing in the set beats
nothing in a subset beats, and ties go to the lowest id in both. If i is not in L, the same draw is made again
over L, with the same noise. Either way the token is the one that eager masking draws, not just one of its law.

With top-k, top-p or min-p the tokens that stay depend on the mask (p = A .5 illegal, B .3, C .2, top-k 2: the
mask first gives B .6, the mask last .75). Requests that truncate are masked before their draw, in that step.

The walk ends at the first illegal choice, whose second draw is the bonus token: one more round trip to the
device per step, whatever the batch. A path may be shorter than eager masking's for that; what is committed is
the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession, refused
from specgrammar.protocols.grammar import NodeStatus, Vocabulary
from specgrammar.runtime.masking import LaunchedStep, MaskParts, Verified
from specgrammar.spec.sampler import sample_tokens
from specgrammar.spec.walk import Walk, rows_of, to_host
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree


@dataclass(frozen=True)
class LazyMasking:
    """Accept unmasked, then mask and sample again where the grammar forbids what the target chose."""

    parts: MaskParts

    def verify(self, step: LaunchedStep) -> Verified:
        """See `MaskPolicy`."""
        parts, span = self.parts, self.parts.trace.span
        with span("barrier"):
            parts.ledger.advance_pending()
            for session in step.sessions:
                session.advance()  # takes back the moves of a step whose result never came
        tree = step.staged.resolve()
        validate_tree(tree)
        guarded = [not request.sampling.truncates for request in step.batch.requests]
        status = open_status(tree, step.sessions, parts.vocabulary)
        if all(guarded):
            with span("wait"):
                logits = step.pending.wait()
            logits[:, parts.vocabulary.vocab_size :] = -torch.inf
            num_rows = 0
        else:
            logits, num_rows = self._mask_the_others(step, tree, guarded, status)
        slot = parts.allocator.acquire(tree.num_nodes if step.want_logprobs else tree.bs)
        try:
            rows = MaskRows(slot.rows, tree.num_nodes)
            with span("accept"):
                walk = GuardedWalk(tree, logits, status, step, guarded, rows).run()
            mask = GrammarMask(rows, slot, parts.device, parts.vocabulary.vocab_size)
        except BaseException:
            slot.release(None)
            raise
        with mask:
            if mask.num_rows:
                with span("resample"):
                    mask.upload()
                    mask.apply(logits)
                    walk.draw_again()
        return Verified(walk.paths(step.want_logprobs), status, num_rows + mask.num_rows)

    def _mask_the_others(
        self, step: LaunchedStep, tree: HostTree, guarded: Sequence[bool], status: NDArray[np.int8]
    ) -> tuple[torch.Tensor, int]:
        """Mask the requests that truncate, before any draw; their statuses go to `status`."""
        parts, span = self.parts, self.parts.trace.span
        over = _over(parts.vocabulary)
        sessions = [over if g else s for g, s in zip(guarded, step.sessions, strict=True)]
        with span("build"):
            mask = build_grammar_mask(
                sessions, step.staged, parts.allocator, parts.device, parts.vocabulary, workers=parts.workers
            )
        with mask:
            with span("upload"):
                mask.upload()
            with span("wait"):
                logits = step.pending.wait()
            with span("apply"):
                mask.apply(logits)
        others = ~np.repeat(np.array(guarded), np.diff(tree.cu_nodes))
        status[others] = mask.status[others]
        return logits, mask.num_rows


class GuardedWalk(Walk):
    """The walk of `accept` over unmasked rows; the grammar is asked about each choice of a guarded request."""

    def __init__(
        self,
        tree: HostTree,
        logits: torch.Tensor,
        status: NDArray[np.int8],
        step: LaunchedStep,
        guarded: Sequence[bool],
        rows: MaskRows,
    ) -> None:
        super().__init__(tree, logits, status, step.batch.requests, None)
        self._sessions, self._guarded, self._rows = step.sessions, guarded, rows
        self._fill_all = step.want_logprobs
        self._refused: list[tuple[int, int, int, int]] = []  # level, place in it, request, node

    def decide(
        self, walking: NDArray[np.int64], here: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `Walk.decide`; a choice that the grammar refuses is no token yet, and nothing follows it."""
        token, child = super().decide(walking, here, positions)
        depth = len(self.levels)
        for place, (request, node, choice) in enumerate(
            zip(walking.tolist(), here.tolist(), token.tolist(), strict=True)
        ):
            if not self._guarded[request]:
                continue
            session = self._sessions[request]
            if self._fill_all:
                session.fill_ahead(self._rows, node)
            if choice >= 0 and session.finish is None and session.try_ahead(choice):
                continue
            if not self._fill_all:
                session.fill_ahead(self._rows, node)
            token[place] = child[place] = -1
            if self._rows.statuses[node] == NodeStatus.LIVE:
                self._refused.append((depth, place, request, node))
        return token, child

    def draw_again(self) -> None:
        """Draw the refused choices from their rows, which are masked now; each is a bonus token."""
        if not self._refused:
            return
        depth, place, request, node = np.array(self._refused).T
        positions = self.num_tokens[request] + depth
        token = to_host(sample_tokens(rows_of(self.logits, node), self.table.take(request), positions))
        for d, p, r, choice in zip(depth, place, request, token.tolist(), strict=True):
            session = self._sessions[r]
            if choice >= 0 and not session.try_ahead(choice) and session.finish is None:
                session.fail(refused(choice, len(session.output) + int(d)))
            if session.finish is None:
                self.levels[d].token[p] = self.bonus[r] = choice


def open_status(tree: HostTree, sessions: Sequence[GrammarSession], vocabulary: Vocabulary) -> NDArray[np.int8]:
    """The status of every node as far as the grammar need not be asked, int8 `[num_nodes]`.

    FREE for tokens, ENDED for stop tokens, REJECTED for ids outside the vocabulary; PADDING for placeholders
    and for requests that are over.
    """
    tokens = tree.draft_tokens
    status = np.full(tree.num_nodes, NodeStatus.FREE, np.int8)
    status[np.isin(tokens, vocabulary.stop_ids)] = NodeStatus.ENDED
    status[tokens >= vocabulary.vocab_size] = NodeStatus.REJECTED
    status[tokens < 0] = NodeStatus.PADDING
    status[tree.cu_nodes[:-1]] = NodeStatus.FREE
    for request, session in enumerate(sessions):
        if session.finish is not None:
            status[tree.request_slice(request)] = NodeStatus.PADDING
    return status


def _over(vocabulary: Vocabulary) -> GrammarSession:
    """A session that nothing is filled for."""
    session = GrammarSession(vocabulary)
    session.abort()
    return session
