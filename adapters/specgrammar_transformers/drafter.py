"""`TransformersDrafter`: any smaller or equal causal model as the drafter of chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from specgrammar.errors import ModelError
from specgrammar.protocols.drafter import Drafts
from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.protocols.staging import Device, Launched
from specgrammar.runtime.device import device_for
from specgrammar.spec.noise import Stream
from specgrammar.spec.roots import last_tokens
from specgrammar.spec.sampler import sample_tokens, truncate_probs
from specgrammar_transformers.cached_model import CachedModel
from specgrammar_transformers.catch_up import CatchUp, Ragged
from specgrammar_transformers.tree_layout import TreeLayout

_LONGEST_CATCH_UP = 32
"""Tokens that a request may be behind in a batched forward; more are run alone, to spare the others padding."""


@dataclass
class _Cached:
    """What the cache holds of a request.

    Attributes:
        num_known: its leading tokens that are committed for certain.
        behind: what it holds behind them (committed tokens that the host did not know, then drafts): what a
            piece of work says, and the request's row there; None for nothing.
    """

    num_known: int = 0
    behind: tuple[Launched[Ragged], int] | None = None


class TransformersDrafter:
    """Drafts chains with a causal model of its own cache (`protocols.spec.CausalDrafter`).

    A request that outgrows the draft model's context is still drafted for, with its last token repeated: a
    proposal of probability one that is stated as such, so that the target's law is untouched.

    A draft's forwards and draws are launched one behind the other, each taking its ids where the one before
    left them, and what was committed is compared with the drafts before on the stream, too: the host waits for
    none of it.
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
            ModelError: the model's cache cannot be kept by token (see `architecture`), or it lacks tokens.
        """
        self._cached = CachedModel(model, max_batch_size, device or device_for(str(model.device)))
        if self._cached.num_ids < vocab_size:
            raise ModelError(
                f"the draft model has {self._cached.num_ids} tokens, the target's tokenizer {vocab_size}; "
                "draft with a model of the same tokenizer"
            )
        self._vocab_size = min(vocab_size, self._cached.vocab_size)
        self._requests: dict[str, _Cached] = {}
        self._made: Launched[None] | None = None  # the last drafts

    @property
    def vocab_size(self) -> int:
        """Number of logits columns that are real tokens."""
        return self._vocab_size

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        """Launch drafts of `num_tokens` tokens behind each request's last committed one.

        Args:
            batch: the requests, in any order; new ones are added, those that were drafted for catch up.
            num_tokens: tokens per request, at least 1.
            sampled: draw from q with noise of the request's seed that the target does not use, and return q;
                otherwise take the argmax.

        Returns:
            See `Drafts`; ids are -1 where the model's logits are NaN and nothing can be drawn.

        Raises:
            ModelError: more requests than `max_batch_size` are kept; `forget` finished ones.
        """
        self._recover(batch)
        device = self._cached.device
        tokens = torch.empty(len(batch), 1 + num_tokens, dtype=torch.int64, device=device)
        q = torch.empty(len(batch), num_tokens, self._vocab_size, device=device) if sampled else None
        filled = self._cached.launch(lambda: _repeat_last(batch, tokens, q))
        most = 0 if batch.unresolved is None else batch.unresolved.max_tokens
        rows = [
            row
            for row, view in enumerate(batch.requests)
            if view.num_tokens + most + num_tokens <= self._cached.max_length
        ]
        if not rows:
            return Drafts(tokens, q, filled)
        views = [batch.requests[row] for row in rows]
        plan, logits = self._catch_up(batch, rows)
        drawn = [self._draw(views, 0, plan, logits, q, rows)]
        for column in range(1, num_tokens):
            logits = self._step(views, drawn[-1])
            drawn.append(self._draw(views, column, plan, logits, q, rows))

        def write() -> None:
            filled.value()
            tokens[rows, 1:] = torch.stack([ids.value() for ids in drawn], dim=1)

        self._made = self._cached.launch(write)
        self._note(views, plan, drawn[:-1])  # the last one was not run
        return Drafts(tokens, q, self._made)

    def forget(self, request_id: str) -> None:
        """Free what is kept for a request that has finished; unknown ids are ignored."""
        self._requests.pop(request_id, None)
        self._cached.remove(request_id)

    def _recover(self, batch: DecodeBatch) -> None:
        """Begin anew where the last drafts failed: the books are ahead of what was run."""
        if self._made is None or (batch.unresolved is not None and not self._made.done()):
            return
        try:
            self._made.wait()
        except Exception:  # the step that they were for has raised it
            for request_id in list(self._requests):
                self.forget(request_id)
        self._made = None

    def _catch_up(
        self, batch: DecodeBatch, rows: list[int]
    ) -> tuple[Launched[CatchUp], Launched[torch.Tensor]]:
        """Drop drafts that were rejected and run what was committed since.

        Returns the plan, and the logits `[rows, vocab_size]` behind each last committed token.
        """
        views = [batch.requests[row] for row in rows]
        ids = [view.request_id for view in views]
        unresolved, device = batch.unresolved, self._cached.device
        tails = [self._tail(view) for view in views]
        books = [self._requests[name] for name in ids]
        known = torch.tensor([book.num_known for book in books], dtype=torch.int64, device=device)
        behind = _grouped(books)

        def plan() -> CatchUp:
            committed = Ragged.of_lists(tails, device)
            if unresolved is not None:
                found = unresolved.value()
                committed += Ragged(found.tokens[rows], found.num_tokens[rows])
            parts = [(work.value(), taken, places) for work, taken, places in behind]
            return CatchUp.plan(known, Ragged.of_rows(parts, len(rows), device), committed)

        planned = self._cached.launch(plan)
        most = 0 if unresolved is None else unresolved.max_tokens
        self._cached.truncate(
            ids, lambda: planned.value().lengths, [view.num_tokens + most - 1 for view in views]
        )
        logits = self._cached.forward(ids, lambda: planned.value().layout(), "draft")

        def nodes() -> NDArray[np.int64]:
            sizes = planned.value().sizes[:, None]
            column = np.arange(sizes.max())
            return np.where(column < sizes, column, -1)

        self._cached.keep(ids, nodes, 1)  # with it the bound is exact where nothing is unresolved

        def last() -> torch.Tensor:
            rows_of_last = planned.value().missing.counts.cumsum(0) - 1
            return logits.value()[rows_of_last, : self._vocab_size]

        return planned, self._cached.launch(last)

    def _tail(self, view: RequestView) -> list[int]:
        """A request's tokens behind those that are known to be cached: the last one at least."""
        if view.request_id not in self._requests:
            self._cached.start(view.request_id)
            self._requests[view.request_id] = _Cached()
        book = self._requests[view.request_id]
        tail = list(view.tokens[book.num_known : view.num_tokens])
        if len(tail) <= _LONGEST_CATCH_UP:
            return tail
        known = torch.tensor([book.num_known], device=self._cached.device)
        self._cached.truncate([view.request_id], lambda: known, [book.num_known])
        self._cached.extend(view.request_id, tail[:-1]).wait()
        self._requests[view.request_id] = _Cached(view.num_tokens - 1)
        return tail[-1:]

    def _draw(
        self,
        views: Sequence[RequestView],
        column: int,
        plan: Launched[CatchUp],
        logits: Launched[torch.Tensor],
        q: torch.Tensor | None,
        rows: list[int],
    ) -> Launched[torch.Tensor]:
        """Choose a token per request, int64 `[requests]`; if there is a `q`, drawn from what its `rows` get."""
        params = [view.sampling for view in views]

        def draw() -> torch.Tensor:
            if q is None:
                return logits.value().argmax(dim=-1)
            q[rows, column] = truncate_probs(logits.value(), params)
            positions = plan.value().num_committed.cpu().numpy() + column
            return sample_tokens(logits.value(), params, positions, stream=Stream.DRAFT)

        return self._cached.launch(draw, "draft")

    def _step(self, views: Sequence[RequestView], drawn: Launched[torch.Tensor]) -> Launched[torch.Tensor]:
        """Run the tokens that were just drawn; the logits behind them, `[requests, vocab_size]`."""
        ids = [view.request_id for view in views]
        sizes = np.ones(len(views), dtype=np.int64)

        def layout() -> TreeLayout:
            # Behind a -1 anything may follow; the model is given an id that it has.
            token = drawn.value().clamp(min=0)
            return TreeLayout(token[:, None], torch.ones_like(token, dtype=torch.bool)[:, None, None], sizes)

        logits = self._cached.forward(ids, layout, "draft")
        self._cached.keep(ids, lambda: np.zeros((len(ids), 1), dtype=np.int64), 1)
        return self._cached.launch(lambda: logits.value()[:, : self._vocab_size])

    def _note(
        self, views: Sequence[RequestView], plan: Launched[CatchUp], run: list[Launched[torch.Tensor]]
    ) -> None:
        """Note what the cache holds now: all that is committed, and the drafts that were run."""
        num_known = [view.num_tokens - 1 for view in views]

        def behind() -> Ragged:
            committed = plan.value().committed_from(num_known)
            if not run:
                return committed
            drafts = torch.stack([ids.value() for ids in run], dim=1)
            return committed + Ragged(drafts, torch.full_like(committed.counts, len(run)))

        noted = self._cached.launch(behind)
        for row, view in enumerate(views):
            self._requests[view.request_id] = _Cached(num_known[row], (noted, row))


def _repeat_last(batch: DecodeBatch, tokens: torch.Tensor, q: torch.Tensor | None) -> None:
    """Each request's last committed token in all columns, and a q that is sure of it."""
    committed = None if batch.unresolved is None else batch.unresolved.value()
    tokens.copy_(last_tokens(batch, committed, tokens.device)[:, None].expand_as(tokens))
    if q is not None:
        q.zero_().scatter_(2, tokens[:, 1:, None], 1.0)


def _grouped(books: Sequence[_Cached]) -> list[tuple[Launched[Ragged], list[int], list[int]]]:
    """What the requests' caches hold behind what is known: each piece of work, its rows, and whose they are."""
    groups: dict[int, tuple[Launched[Ragged], list[int], list[int]]] = {}
    for place, book in enumerate(books):
        if book.behind is not None:
            work, row = book.behind
            _, taken, places = groups.setdefault(id(work), (work, [], []))
            taken.append(row)
            places.append(place)
    return list(groups.values())
