"""vLLM's own manager and xgrammar backend beside ours, asked the same things: what differs is recorded."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.structured_output import StructuredOutputManager  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
from vllm.v1.structured_output.backend_xgrammar import (  # pyright: ignore[reportMissingImports]  # in vLLM's environment only
    XgrammarBackend,
)


class Recording:
    """Wraps the three walks of a scheduler of ours.

    Attributes:
        counts: steps, rows by what they are, and calls in which stock vLLM answered otherwise.
    """

    def __init__(self, scheduler: Any) -> None:
        """Build vLLM's manager for the scheduler's configuration and stand between the scheduler and ours."""
        config = scheduler.vllm_config
        self.counts: Counter[str] = Counter()
        self._stock = StructuredOutputManager(config)
        self._stock.backend = XgrammarBackend(
            config, tokenizer=self._stock.tokenizer, vocab_size=config.model_config.get_vocab_size()
        )
        self._requests: dict[str, Any] = {}
        self._rows: dict[str, np.ndarray[Any, Any]] = {}
        self._ours = ours = scheduler.structured_output_manager
        self._validate, self._bitmask, self._accept = (
            ours.validate_tokens,
            ours.grammar_bitmask,
            ours.accept_tokens,
        )
        ours.validate_tokens = self.validate_tokens
        ours.grammar_bitmask = self.grammar_bitmask
        ours.accept_tokens = self.accept_tokens

    def summary(self) -> dict[str, int]:
        """The counts."""
        return dict(self.counts)

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        """Both cut the same; what ours adds is legal, too."""
        found: list[int] = self._validate(request, list(spec_tokens))
        stock = self._stock.validate_tokens(self._stock_request(request), list(spec_tokens))
        self.counts["drafts"] += len(spec_tokens)
        self.counts["drafts cut"] += len(spec_tokens) - len(stock)
        self.counts["forced drafts"] += len(found) - len(stock)
        legal = self._stock.validate_tokens(self._stock_request(request), list(found))
        self.counts["validated otherwise"] += found[: len(stock)] != stock or legal != found
        return found

    def grammar_bitmask(self, requests: Any, ids: list[str], scheduled: dict[str, list[int]]) -> Any:
        """Both fill the same rows."""
        rows = self._bitmask(requests, ids, scheduled)
        stock_requests = {name: self._stock_request(requests[name]) for name in ids}
        stock = self._stock.grammar_bitmask(stock_requests, ids, scheduled)
        same = rows.shape == stock.shape and (rows == stock).all(axis=1)
        self.counts["steps"] += 1
        self.counts["rows"] += len(rows)
        self.counts["rows otherwise"] += int(len(rows) - np.sum(same))
        self.counts["ended rows"] += int((rows == -1).all(axis=1).sum())
        first = 0
        for name in ids:
            num_rows = len(scheduled.get(name, ())) + 1
            self._rows[name] = rows[first : first + num_rows].copy()
            first += num_rows
        return rows

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        """Both move alike, and what is kept was drawn from a row that allows it and restricts something."""
        stock_request = self._stock_request(request)
        had_ended = stock_request.structured_output_request.grammar.is_terminated()
        for token, row in zip(new_token_ids, self._rows.get(request.request_id, ()), strict=False):
            is_live = not (row == -1).all()
            self.counts["tokens"] += 1
            self.counts["tokens against their row"] += not row[token // 32] >> (token % 32) & 1
            if not had_ended:
                self.counts["tokens from rows that restrict nothing"] += not is_live
        stock = self._stock.accept_tokens(stock_request, list(new_token_ids))
        found: bool = self._accept(request, new_token_ids)
        self.counts["accepted otherwise"] += found != stock
        return found

    def _stock_request(self, request: Any) -> Any:
        """The request with vLLM's own grammar, at the same place."""
        if request.request_id not in self._requests:
            kind, source = request.structured_output_request.structured_output_key
            grammar = self._stock.backend.compile_grammar(
                kind, source, stop_token_ids=request.sampling_params.all_stop_token_ids
            )
            self._requests[request.request_id] = SimpleNamespace(
                request_id=request.request_id,
                use_structured_output=True,
                structured_output_request=SimpleNamespace(grammar=grammar, reasoning_ended=None),
            )
        return self._requests[request.request_id]
