# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""`SglangGrammar`: one request's grammar as sglang moves it, on a matcher of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, GrammarStats

from specgrammar.errors import RequestError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarBackend, Vocabulary
from specgrammar_sglang.dense_rows import allocate_rows, apply_rows, move_rows


class SglangGrammar(BaseGrammarObject):
    """A grammar object of sglang's.

    sglang decides what a request's history is and where it ends, and moves the grammar one token at a time.
    The session around the matcher therefore only walks trees (`mask`), and keeps what went wrong there: such a
    request takes no further token, so that sglang aborts it, and it alone, with the reason.
    """

    def __init__(self, backend: GrammarBackend, compiled: Any, stats: GrammarStats) -> None:
        """Stand at the start of a grammar that `backend` compiled."""
        super().__init__()
        self.grammar_stats = stats
        self._backend = backend
        self._compiled = compiled
        self.matcher = backend.matcher(compiled)
        self.session: GrammarSession = GrammarSession(backend.vocabulary, self.matcher)

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's, as wide as its logits."""
        return self._backend.vocabulary

    @property
    def thread_safe(self) -> bool:
        """Whether other requests' trees may be walked at the same time."""
        return self._backend.facts.thread_safe

    def accept_token(self, token: int) -> None:
        """Move over a token; behind the end nothing moves.

        Raises ValueError, which sglang turns into the request's end, where the token is not legal or the
        grammar has failed before.
        """
        if self.session.error is not None:
            raise ValueError(str(self.session.error))
        if self.matcher.finished:
            return
        self.current_token = token
        try:
            accepted = self.matcher.accept(token)
        except RequestError as error:
            self.session.fail(error)
            raise ValueError(str(error)) from error
        if not accepted:
            raise ValueError(f"the grammar ({self.grammar_stats.dispatch_type}) refuses token id {token}")
        self.session.matcher_moved()

    def rollback(self, k: int) -> None:
        """Undo the last `k` tokens."""
        self.matcher.rollback(k)
        self.session.matcher_moved()

    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""
        return self.matcher.finished

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Fill a row. A failure leaves it all ones, and the request takes no token any more."""
        try:
            self.matcher.fill_bitmask(vocab_mask.numpy(), idx)
        except RequestError as error:
            self.session.fail(error)
            vocab_mask[idx] = -1

    @staticmethod
    def fill_vocab_mask_batched(entries: Iterable[Any], vocab_mask: torch.Tensor) -> None:
        """Fill the rows of `GrammarRow`s; others stay as they are."""
        for entry in entries:
            entry.grammar.fill_vocab_mask(vocab_mask, entry.row)

    @staticmethod
    def allocate_vocab_mask(vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:  # noqa: ARG004  # sglang's
        """Rows on the host that allow everything; `device` is where they will go."""
        return allocate_rows(vocab_size, batch_size)

    @staticmethod
    def reset_vocab_mask(vocab_mask: torch.Tensor) -> None:
        """Let rows allow everything again."""
        vocab_mask.fill_(-1)

    move_vocab_mask = staticmethod(move_rows)
    apply_vocab_mask = staticmethod(apply_rows)

    def copy(self) -> SglangGrammar:
        """A grammar of the same kind at its start."""
        return SglangGrammar(
            self._backend, self._compiled, dataclasses.replace(self.grammar_stats, is_cache_hit=True)
        )

    def __repr__(self) -> str:
        """Name the grammar; sglang logs it."""
        return f"SglangGrammar({self.grammar_stats.dispatch_type}, terminated={self.matcher.finished})"
