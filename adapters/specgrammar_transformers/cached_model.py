"""A causal model with one cache row per request: run prompts, run trees, keep paths.

Everything that reads or writes the cache or runs the model is launched on the device's stream, in the order of
the calls, and no two threads are ever in the model. The host knows which request owns which row, and a bound on
its length; how many tokens a row has is the stream's own knowledge, since what a step keeps may not be known to
the host when the next one is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from specgrammar.errors import InvalidTokenError, ModelError
from specgrammar.protocols.staging import Device, Launched
from specgrammar_transformers.architecture import context_limit, output_head, plane_shapes
from specgrammar_transformers.features import FeatureLog
from specgrammar_transformers.kv_cache import SlotCache
from specgrammar_transformers.rows import Rows
from specgrammar_transformers.self_check import check_paths
from specgrammar_transformers.traced import traced_forward
from specgrammar_transformers.tree_layout import TreeLayout, layout_of_chains

T = TypeVar("T")

_PREFILL_CHUNK = 512
"""Prompt tokens per forward: bounds the mask and the activations, and is long enough to keep a CPU busy."""


class CachedModel:
    """The model, its cache, and which request owns which row.

    Rows `[0, number of requests)` are taken. `forward` wants its batch in the first rows, in batch order, and
    moves rows if it is not: an engine's batch keeps its order from step to step, so that this is rare.

    What `extend` and `forward` return says what became of the work. A change of the cache that failed (memory
    ran out, say) leaves it in an unknown state; it shows in every later forward.

    Attributes:
        model: the model, in evaluation mode.
        max_batch_size: rows of the cache.
        num_ids: ids that the model can be given.
        max_length: most tokens of one request that the model can place.
    """

    def __init__(self, model: PreTrainedModel, max_batch_size: int, stream: Device) -> None:
        """Take over a model, which must be where `stream` runs its work.

        Raises:
            ModelError: a path of a tree cannot be kept of what the model keeps (see `architecture`), or the
                model does not follow the paths that it is given (see `self_check`).
        """
        self.model = model
        self.model.train(False)
        planes = plane_shapes(model)
        self.max_length = context_limit(model)
        self._cache = SlotCache(planes, max_batch_size)
        self._stream = stream
        self._changed: Launched[None] = self.launch(lambda: None)
        self.features = FeatureLog()
        self.max_batch_size = max_batch_size
        self._rows = Rows(max_batch_size)
        self._lengths = torch.zeros(max_batch_size, dtype=torch.int64, device=model.device)  # the stream's
        self._window_start = 0  # the slot of node 0 in the last `forward`
        self.num_ids = _num_rows(model.get_input_embeddings())
        lowest = torch.finfo(model.dtype).min
        self._seen, self._hidden = torch.tensor([0.0, lowest], dtype=model.dtype, device=model.device).unbind()
        self._traced = traced_forward(model, planes)
        check_paths(self)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.model.device

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        head = output_head(self.model)
        return self.num_ids if head is None else _num_rows(head)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._rows

    def start(self, request_id: str) -> None:
        """Give a request an empty row.

        Raises:
            ModelError: the request has one already, or all rows are taken.
        """
        row = self._rows.add(request_id)
        self._change(lambda: self._lengths[row].zero_())

    def launch(self, work: Callable[[], T], label: str = "") -> Launched[T]:
        """Put work on the model's stream; it runs without gradients."""

        def without_gradients() -> T:
            with torch.no_grad():
                return work()

        return self._stream.launch(without_gradients, label)

    def extend(self, request_id: str, tokens: Sequence[int]) -> Launched[None]:
        """Launch tokens behind those that are cached, in chunks, and keep them.

        The bound on the request's length has to be exact.

        Raises:
            InvalidTokenError: an id is outside the model's vocabulary; nothing was launched.
            ModelError: the tokens do not fit the context; nothing was launched.
        """
        row = self._rows.of(request_id)
        self.check_fits(request_id, self._rows.bounds[row] + len(tokens))
        for token in tokens:
            if not 0 <= token < self.num_ids:
                raise InvalidTokenError(
                    f"request {request_id!r}: token {token} is outside the model's vocabulary of "
                    f"{self.num_ids}; tokenise with the model's own tokenizer"
                )
        length, changed = self._rows.bounds[row], self._changed
        self._rows.bounds[row] += len(tokens)

        def run() -> None:
            changed.value()
            for begin in range(0, len(tokens), _PREFILL_CHUNK):
                chunk = layout_of_chains([tokens[begin : begin + _PREFILL_CHUNK]], self.device)
                self._run(self.model.base_model, chunk, row, length + begin)
                self._lengths[row] += chunk.ids.shape[1]
                nodes = np.arange(chunk.ids.shape[1])
                self.features.keep([request_id], np.zeros_like(nodes), nodes)

        return self.launch(run, "prefill")

    def forward(
        self, request_ids: Sequence[str], layout: Callable[[], TreeLayout], label: str
    ) -> Launched[torch.Tensor]:
        """Launch one forward over a tree per request, each behind its cached tokens. Nothing is kept yet.

        Args:
            request_ids: the requests, without repetition.
            layout: makes their trees, on the stream: it may read what work before it has left.
            label: what the work is called.

        Returns:
            Logits `[sum of layout.sizes, columns]` in the model's dtype, the nodes in order.
        """
        self._arrange(request_ids)
        start = self._window_start = max(self._rows.bounds[: len(request_ids)])
        changed = self._changed

        def run() -> torch.Tensor:
            changed.value()
            return self._logits(layout(), start)

        return self.launch(run, label)

    def keep(self, request_ids: Sequence[str], nodes: Callable[[], NDArray[np.int64]], most: int) -> None:
        """Keep nodes of the last forward behind each request's tokens, and forget the others.

        Args:
            request_ids: requests of that forward; those that were removed since are skipped.
            nodes: tells on the stream which, int64 `[bs, any]`, node numbers local to the request in path
                order, -1 behind the last. Where it raises nothing is kept, and the error is left to others.
            most: of no request more are kept.
        """
        live = [i for i, name in enumerate(request_ids) if name in self._rows]
        rows = [self._rows.of(request_ids[i]) for i in live]
        for row in rows:
            self._rows.bounds[row] += most
        start = self._window_start
        index, places = torch.tensor(rows, dtype=torch.int64), np.array(live, dtype=np.int64)

        def keep() -> None:
            try:
                found = nodes()
            except Exception:  # that step's failure, not the cache's
                return
            kept = found[places]
            self._cache.keep(self._lengths, index, torch.from_numpy(kept), start)
            if self.features.layers:
                item, place = (kept >= 0).nonzero()
                self.features.keep(request_ids, places[item], kept[item, place])

        self._change(keep, "keep")

    def truncate(
        self, request_ids: Sequence[str], lengths: Callable[[], torch.Tensor], bounds: list[int]
    ) -> None:
        """Forget requests' tokens behind some lengths.

        Args:
            request_ids: the requests.
            lengths: tells on the stream, int64 `[bs]`, none longer than what is cached. Where it raises
                nothing is forgotten, and the error is left to others.
            bounds: what they are at most.
        """
        rows = [self._rows.of(name) for name in request_ids]
        for row, bound in zip(rows, bounds, strict=True):
            self._rows.bounds[row] = bound
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)

        def truncate() -> None:
            try:
                found = lengths()
            except Exception:  # the failure of what plans to run behind them, which does not run then
                return
            self._lengths[index] = found

        self._change(truncate)

    def lengths(self, request_ids: Sequence[str]) -> torch.Tensor:
        """How many tokens the first rows have, which are these requests': for work behind `forward`."""
        return self._lengths[: len(request_ids)]

    def bound(self, request_id: str, length: int) -> None:
        """Note that a request has at most so many tokens in the cache, and lets the window begin there."""
        self._rows.bounds[self._rows.of(request_id)] = length

    def remove(self, request_id: str) -> None:
        """Free a request's row; the last row moves into it. Unknown ids are ignored."""
        if request_id not in self._rows:
            return
        row, last = self._rows.remove(request_id)
        if row != last:
            self._change(lambda: self._copy_rows([last], [row]), "keep")
        self._change(lambda: self._cache.clear_row(last), "keep")
        if self.features.layers:
            self.launch(lambda: self.features.forget(request_id))

    def check_fits(self, request_id: str, length: int) -> None:
        """Raise ModelError where the model cannot place `length` tokens."""
        if length > self.max_length:
            raise ModelError(
                f"request {request_id!r} needs {length} tokens, but {type(self.model).__name__} can place "
                f"{self.max_length}; shorten the prompt or lower max_new_tokens"
            )

    def _arrange(self, request_ids: Sequence[str]) -> None:
        """Move rows until the batch lies in the first ones, in its order."""
        if moves := self._rows.arrange(request_ids):
            old, new = ([move[side] for move in moves] for side in (0, 1))
            self._change(lambda: self._copy_rows(old, new), "keep")

    def _copy_rows(self, from_rows: list[int], to_rows: list[int]) -> None:
        self._cache.copy_rows(from_rows, to_rows)
        self._lengths[to_rows] = self._lengths[from_rows]

    def _change(self, work: Callable[[], object], label: str = "") -> None:
        """Launch a change of what is kept, unless one before it failed."""
        before = self._changed

        def change() -> None:
            before.value()
            work()

        self._changed = self.launch(change, label)

    def _logits(self, layout: TreeLayout, start: int) -> torch.Tensor:
        """Run the first rows; the logits of real nodes."""
        bs, width = layout.ids.shape
        if self._traced is not None and self._traced.is_faithful and not self.features.layers:
            mask, positions = self._paths(layout, 0, start)
            nodes = torch.from_numpy(np.flatnonzero(np.arange(width) < layout.sizes[:, None]))
            return self._traced(layout.ids, mask, positions, nodes, self._cache.window(0, bs, start, width))
        if int(layout.sizes.sum()) == bs * width:
            logits: torch.Tensor = self._run(self.model, layout, 0, start).logits
            return logits.reshape(bs * width, -1)
        real = (np.arange(width) < layout.sizes[:, None]).nonzero()
        rows, columns = (torch.from_numpy(part).to(self.device) for part in real)
        with self._head_reads(rows, columns):
            logits = self._run(self.model, layout, 0, start).logits
        return logits[0] if logits.shape[:2] == (1, len(rows)) else logits[rows, columns]

    def _run(self, module: torch.nn.Module, layout: TreeLayout, row: int, start: int) -> Any:
        """One forward of rows `[row, row + bs)`, their nodes written to slots from `start` on."""
        bs, width = layout.ids.shape
        self._cache.open_window(row, bs, start, width)
        mask, positions = self._paths(layout, row, start)
        output = module(
            input_ids=layout.ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            output_hidden_states=bool(self.features.layers),
        )
        self.features.see(output)
        return output

    def _paths(self, layout: TreeLayout, row: int, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What each node sees, and its position.

        The mask is additive and of the model's dtype: attention implementations differ in what they make of a
        boolean one. Its lowest finite number, not -inf, keeps a row that is all hidden finite.
        """
        bs, width = layout.ids.shape
        committed = self._lengths[row : row + bs, None]
        prefix = torch.arange(start, device=self.device) < committed
        visible = torch.cat([prefix[:, None].expand(bs, width, start), layout.ancestors], dim=2)
        return torch.where(visible, self._seen, self._hidden)[:, None], committed + layout.depths

    def _head_reads(
        self, rows: torch.Tensor, columns: torch.Tensor
    ) -> AbstractContextManager[RemovableHandle | None]:
        """Let the output projection compute real nodes only: it is a large part of a small model."""
        head = output_head(self.model)
        if head is None:
            return nullcontext()

        def select(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            return (inputs[0][rows, columns][None],)

        return head.register_forward_pre_hook(select)


def _num_rows(embedding: torch.nn.Module) -> int:
    weight = embedding.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0]
