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

On a device with memory of its own a second draw is a round trip. So each row's best tokens come back, not one:
by the same argument the first legal one of them is the masked draw, and the walk goes on. Only where none is
legal the walk ends, and the token drawn from the masked row is the bonus token: at most one more trip per step,
whatever the batch. Such a path may be shorter than eager masking's; what is committed is the same. On the CPU,
where a second draw is no trip, it is made at once; a greedy one by native code, as it follows the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.grammar.mask import check_logits
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.runtime.lazy_walk import LazyWalk
from specgrammar.runtime.masking import LaunchedStep, MaskParts, Verified, catch_up, mask_before_drawing
from specgrammar.runtime.outcome import Outcome
from specgrammar.runtime.readback import Readback
from specgrammar.runtime.second_draws import SecondDraws
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree


@dataclass(frozen=True)
class LazyMasking:
    """Accept unmasked, then mask and sample again where the grammar forbids what the target chose."""

    parts: MaskParts
    walk_type: type[LazyWalk] = LazyWalk
    readback: Readback = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readback", Readback(self.parts.device))

    def verify(self, step: LaunchedStep) -> Verified:
        """See `MaskPolicy`."""
        parts, span = self.parts, self.parts.trace.span
        tree = catch_up(parts, step)
        if step.batch.unresolved is not None:
            step = replace(step, batch=step.batch.resolved())
        validate_tree(tree)
        guarded = [not request.sampling.truncates for request in step.batch.requests]
        status = np.empty(tree.num_nodes, np.int8)
        if all(guarded):
            with span("wait"):
                logits = step.pending.wait()
            check_logits(logits, tree.num_nodes)
            if logits.shape[1] > parts.vocabulary.vocab_size:
                logits[:, parts.vocabulary.vocab_size :] = -torch.inf
            num_rows = 0
        else:
            logits, num_rows = self._mask_the_others(step, tree, guarded, status)
        capacity = tree.num_nodes if step.want_logprobs else tree.bs
        with span("accept"), SecondDraws(parts, capacity, tree.num_nodes, logits) as second:
            walk = self.walk_type(tree, logits, status, step, guarded, second, self.readback, parts)
            walk.run()
            paths = walk.paths()
        return Verified(Outcome(lambda: paths), True, status, num_rows + second.num_rows, walk.num_cut)

    def _mask_the_others(
        self, step: LaunchedStep, tree: HostTree, guarded: Sequence[bool], status: NDArray[np.int8]
    ) -> tuple[torch.Tensor, int]:
        """Mask the requests that truncate, before any draw; their statuses go to `status`."""
        over = _over(self.parts.vocabulary)
        sessions = [over if g else s for g, s in zip(guarded, step.sessions, strict=True)]
        masked, mask = mask_before_drawing(self.parts, step, sessions)
        with self.parts.trace.span("wait"):
            on_host = self.parts.device.torch_device.type == "cpu"  # which is in no stream's order
            logits = masked.wait() if on_host else masked.value()
        others = ~np.repeat(np.array(guarded), np.diff(tree.cu_nodes))
        status[others] = mask.status[others]
        return logits, mask.num_rows


def _over(vocabulary: Vocabulary) -> GrammarSession:
    """A session that nothing is filled for."""
    session = GrammarSession(vocabulary)
    session.abort()
    return session
