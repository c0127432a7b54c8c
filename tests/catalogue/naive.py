"""What engines do, or did: each piece is a few honest lines, and wrong in one way that the catalogue names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.protocols.grammar import GrammarMatcher
from specgrammar.testing.toys import VOCABULARY

Row = NDArray[np.int32]


def everything() -> Row:
    """A row that allows everything."""
    return np.full(VOCABULARY.num_words, -1, np.int32)


class FlaggedGrammar:
    """A request's grammar with a flag of its own for the end, set when a whole block has gone through."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self.matcher = matcher
        self.terminated = False

    def accept_tokens(self, tokens: Sequence[int]) -> bool:
        """Whether the block is legal."""
        for token in tokens:
            if not self.matcher.accept(token):
                return False
        self.terminated = self.matcher.finished
        return True


def row_behind(matcher: GrammarMatcher) -> Row:
    """The row of a state."""
    rows = np.zeros((1, VOCABULARY.num_words), np.int32)
    matcher.fill_bitmask(rows, 0)
    row: Row = rows[0]
    return row


def chain_rows(matcher: GrammarMatcher, drafts: Sequence[int]) -> list[Row]:
    """Fill a row, accept a draft, fill the next; rows behind the first illegal draft allow everything."""
    rows = [row_behind(matcher)]
    num_accepted = 0
    for draft in drafts:
        if num_accepted == len(rows) - 1 and matcher.accept(draft):
            num_accepted += 1
            rows.append(row_behind(matcher))
        else:
            rows.append(everything())
    matcher.rollback(num_accepted)
    return rows


def masked(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Row i onto logits i, for as many rows as there are and for the tokens that they speak of."""
    out = logits.clone()
    for target, row in zip(out, rows, strict=False):
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: VOCABULARY.vocab_size]
        target[: VOCABULARY.vocab_size][torch.from_numpy(bits == 0)] = -torch.inf
    return out


def greedy_path(logits: torch.Tensor, drafts: Sequence[int]) -> list[int]:
    """Verify a chain: take drafts while the target agrees, then one token more."""
    wanted: list[int] = logits.argmax(dim=1).tolist()
    num_accepted = next((i for i, draft in enumerate(drafts) if wanted[i] != draft), len(drafts))
    return wanted[: num_accepted + 1]
