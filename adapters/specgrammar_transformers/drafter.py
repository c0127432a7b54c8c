"""`TransformersDrafter`: any smaller or equal causal model as the drafter of chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.protocols.staging import Device, Launched
from specgrammar.runtime.device import device_for
from specgrammar.spec.noise import Stream
from specgrammar.spec.sampler import sample_tokens, truncate_probs
from specgrammar_transformers.cached_model import CachedModel
from specgrammar_transformers.tree_layout import TreeLayout, layout_of_chains

_LONGEST_CATCH_UP = 32
"""Tokens that a request may be behind in a batched forward; more are run alone, to spare the others padding."""


@dataclass
class _Cached:
    """Which tokens the cache holds for a request; the first `num_committed` of them can never change."""

    tokens: list[int] = field(default_factory=list)
    num_committed: int = 0


class TransformersDrafter:
    """Drafts chains with a causal model of its own cache (`protocols.spec.CausalDrafter`).

    A request that outgrows the draft model's context is still drafted for, with its last token repeated: a
    proposal of probability one that is stated as such, so that the target's law is untouched.

    A draft's forwards and draws are launched one behind the other, each taking its ids where the one before
    left them: the host waits once, for the finished chains.
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, max_batch_size: int, device: Device | None = None
    ) -> None:
        """Take over a draft model.

        Args:
            model: a causal model; it is put into evaluation mode.
            vocab_size: columns of its logits that are real tokens, of the target's tokenizer.
            max_batch_size: most requests that are drafted for at a time.
            device: where the model is and forwards are launched; None for the model's, inline on a CPU.

        Raises:
            ModelError: the model's cache cannot be kept by token (see `architecture`).
        """
        self._cached = CachedModel(model, max_batch_size, device or device_for(str(model.device)))
        self._vocab_size = min(vocab_size, self._cached.vocab_size)
        self._requests: dict[str, _Cached] = {}

    @property
    def vocab_size(self) -> int:
        """Number of logits columns that are real tokens."""
        return self._vocab_size

    def draft(
        self, batch: DecodeBatch, num_tokens: int, *, sampled: bool
    ) -> tuple[NDArray[np.int64], torch.Tensor | None]:
        """Continue every request by `num_tokens` tokens behind its last committed one.

        Args:
            batch: the requests, in any order; new ones are added, those that were drafted for catch up.
            num_tokens: tokens per request.
            sampled: draw from q with noise of the request's seed that the target does not use, and return q;
                otherwise take the argmax.

        Returns:
            Token ids int64 `[bs, num_tokens]`, -1 where the model's logits are NaN and nothing can be drawn
            (what follows in that row means nothing), and q float32 `[bs, num_tokens, vocab_size]` on the
            model's device or None.

        Raises:
            ModelError: more requests than `max_batch_size` are kept; `forget` finished ones.
        """
        tokens = np.array([[view.tokens[-1]] * num_tokens for view in batch.requests], dtype=np.int64)
        tokens = tokens.reshape(len(batch), num_tokens)
        q: torch.Tensor | None = None
        if sampled:
            q = torch.zeros(len(batch), num_tokens, self._vocab_size, device=self._cached.device)
            q.scatter_(2, torch.from_numpy(tokens).to(q.device)[:, :, None], 1.0)
        rows = [
            row
            for row, view in enumerate(batch.requests)
            if view.num_tokens + num_tokens <= self._cached.max_length
        ]
        if num_tokens == 0 or not rows:
            return tokens, q
        views = [batch.requests[row] for row in rows]
        drawn: list[Launched[torch.Tensor]] = []
        for column in range(num_tokens):
            logits = self._step(views, drawn[-1]) if drawn else self._catch_up(views)
            drawn.append(self._draw(views, column, logits, q, rows))
        chains = self._cached.launch(lambda: torch.stack([d.value() for d in drawn], dim=1).cpu().numpy())
        try:
            tokens[rows] = chains.wait()
        except Exception:  # the books are ahead of what was run
            for view in views:
                self.forget(view.request_id)
            raise
        for view, row in zip(views, tokens[rows].tolist(), strict=True):
            self._requests[view.request_id].tokens += row[:-1]  # the last one was not run
        return tokens, q

    def forget(self, request_id: str) -> None:
        """Free what is kept for a request that has finished; unknown ids are ignored."""
        self._requests.pop(request_id, None)
        self._cached.remove(request_id)

    def _catch_up(self, views: Sequence[RequestView]) -> Launched[torch.Tensor]:
        """Drop drafts that were rejected, run what was committed since; the logits behind each last token."""
        missing = []
        for view in views:
            kept = self._drop_rejected(view)
            missing.append(list(view.tokens[kept:]))
            if len(missing[-1]) > _LONGEST_CATCH_UP:
                self._cached.extend(view.request_id, missing[-1][:-1]).wait()
                self._requests[view.request_id].tokens += missing[-1][:-1]
                missing[-1] = missing[-1][-1:]
        for view, chain in zip(views, missing, strict=True):
            self._requests[view.request_id].tokens += chain
        sizes = np.array([len(chain) for chain in missing], dtype=np.int64)
        return self._run(views, sizes, lambda: layout_of_chains(missing, self._cached.device))

    def _drop_rejected(self, view: RequestView) -> int:
        """Truncate a request's cache to what is committed; how many tokens are left, never the last one."""
        if view.request_id not in self._requests:
            self._cached.start(view.request_id)
            self._requests[view.request_id] = _Cached()
        cached = self._requests[view.request_id]
        most = min(len(cached.tokens), view.num_tokens - 1)
        kept = min(cached.num_committed, most)
        while kept < most and cached.tokens[kept] == view.tokens[kept]:
            kept += 1
        self._cached.truncate(view.request_id, kept)
        del cached.tokens[kept:]
        cached.num_committed = view.num_tokens
        return kept

    def _draw(
        self,
        views: Sequence[RequestView],
        column: int,
        logits: Launched[torch.Tensor],
        q: torch.Tensor | None,
        rows: list[int],
    ) -> Launched[torch.Tensor]:
        """Choose a token per request, int64 `[requests]`; if there is a `q`, drawn from what its `rows` get."""
        positions = np.array([view.num_tokens + column for view in views], dtype=np.int64)
        params = [view.sampling for view in views]

        def draw() -> torch.Tensor:
            if q is None:
                return logits.value().argmax(dim=-1)
            q[rows, column] = truncate_probs(logits.value(), params)
            return sample_tokens(logits.value(), params, positions, stream=Stream.DRAFT)

        return self._cached.launch(draw, "draft")

    def _step(self, views: Sequence[RequestView], drawn: Launched[torch.Tensor]) -> Launched[torch.Tensor]:
        """Run the tokens that were just drawn; the logits behind them."""
        sizes = np.ones(len(views), dtype=np.int64)

        def layout() -> TreeLayout:
            ids = drawn.value().clamp(min=0)  # behind a -1 anything may follow; the model is given an id it has
            return TreeLayout(ids[:, None], torch.ones_like(ids, dtype=torch.bool)[:, None, None], sizes)

        return self._run(views, sizes, layout)

    def _run(
        self, views: Sequence[RequestView], sizes: NDArray[np.int64], layout: Callable[[], TreeLayout]
    ) -> Launched[torch.Tensor]:
        """Run and keep a chain per request; logits `[requests, vocab_size]` behind each chain."""
        ids = [view.request_id for view in views]
        logits = self._cached.forward(ids, layout, "draft")
        nodes = np.arange(sizes.max())
        self._cached.keep(ids, np.where(nodes < sizes[:, None], nodes, -1))
        last = torch.from_numpy(sizes.cumsum() - 1)
        return self._cached.launch(lambda: logits.value()[last.to(logits.value().device), : self._vocab_size])
