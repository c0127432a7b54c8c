"""What a drafter's cache lacks of what was committed: found on the stream, where both are known.

Rows are requests; ragged rows are padded with -1 at their end and come with their counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar_transformers.tree_layout import TreeLayout


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of token ids.

    Attributes:
        tokens: int64 `[bs, width]`, -1 behind a row's last.
        counts: int64 `[bs]`.
    """

    tokens: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of_lists(cls, rows: list[list[int]], device: torch.device) -> Ragged:
        """From lists on the host."""
        width = max(map(len, rows), default=0)
        padded = [[*row, *[-1] * (width - len(row))] for row in rows]
        counts = torch.tensor([len(row) for row in rows], dtype=torch.int64, device=device)
        return cls(torch.tensor(padded, dtype=torch.int64, device=device).view(len(rows), width), counts)

    @classmethod
    def of_rows(
        cls, parts: list[tuple[Ragged, list[int], list[int]]], num_rows: int, device: torch.device
    ) -> Ragged:
        """From rows of others; rows that nobody gives are empty.

        Args:
            parts: each with the rows that are taken of it, and where they go.
            num_rows: of the result.
            device: where it is.
        """
        width = max((part.tokens.shape[1] for part, _, _ in parts), default=0)
        tokens = torch.full((num_rows, width), -1, dtype=torch.int64, device=device)
        counts = torch.zeros(num_rows, dtype=torch.int64, device=device)
        for part, taken, places in parts:
            tokens[places, : part.tokens.shape[1]] = part.tokens[taken]
            counts[places] = part.counts[taken]
        return cls(tokens, counts)

    def __add__(self, other: Ragged) -> Ragged:
        """Each row, and the other's row behind it."""
        width = self.tokens.shape[1] + other.tokens.shape[1]
        tokens = torch.full((len(self.counts), width), -1, dtype=torch.int64, device=self.counts.device)
        tokens[:, : self.tokens.shape[1]] = self.tokens
        column = torch.arange(other.tokens.shape[1], device=self.counts.device)
        behind = torch.where(column < other.counts[:, None], self.counts[:, None] + column, width)
        # What is no token is written to one more column, which is dropped.
        wider = torch.nn.functional.pad(tokens, (0, 1), value=-1)
        return Ragged(wider.scatter(1, behind, other.tokens)[:, :width], self.counts + other.counts)

    def drop(self, num_first: torch.Tensor) -> Ragged:
        """Each row without its first tokens, as wide as the longest that is left."""
        counts = self.counts - num_first
        column = torch.arange(int(counts.max()), device=counts.device)
        source = (num_first[:, None] + column).clamp(max=self.tokens.shape[1] - 1)
        return Ragged(self.tokens.gather(1, source).where(column < counts[:, None], -1), counts)

    def num_alike(self, other: Ragged) -> torch.Tensor:
        """How many leading tokens each row shares with the other's, int64 `[bs]`."""
        width = min(self.tokens.shape[1], other.tokens.shape[1])
        alike = (self.tokens[:, :width] == other.tokens[:, :width]) & (self.tokens[:, :width] >= 0)
        return alike.cumprod(dim=1).sum(dim=1)


@dataclass(frozen=True, eq=False)
class CatchUp:
    """What is to be run, and behind what.

    Attributes:
        known: int64 `[bs]`, leading tokens of the cache that are committed for certain.
        committed: what was committed behind them.
        lengths: int64 `[bs]`, how many tokens of the cache stay.
        missing: what has to be run behind them; at least the last committed token.
    """

    known: torch.Tensor
    committed: Ragged
    lengths: torch.Tensor
    missing: Ragged

    @classmethod
    def plan(cls, known: torch.Tensor, cached: Ragged, committed: Ragged) -> CatchUp:
        """Compare.

        Args:
            known: int64 `[bs]`, leading tokens of the cache that are certainly committed.
            cached: what the cache holds behind them.
            committed: what was committed behind them.
        """
        matched = torch.minimum(committed.num_alike(cached), committed.counts - 1)
        return cls(known, committed, known + matched, committed.drop(matched))

    @property
    def num_committed(self) -> torch.Tensor:
        """How many tokens each request has, int64 `[bs]`."""
        return self.known + self.committed.counts

    def committed_from(self, position: list[int]) -> Ragged:
        """The committed tokens from some positions on, none of which is below `known`."""
        return self.committed.drop(torch.tensor(position, device=self.known.device) - self.known)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many tokens each request is behind, on the host."""
        sizes: NDArray[np.int64] = self.missing.counts.cpu().numpy()
        return sizes

    def layout(self) -> TreeLayout:
        """The missing tokens as one chain per request."""
        ids = self.missing.tokens
        width = ids.shape[1]
        ancestors = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril_()
        return TreeLayout(ids.clamp(min=0), ancestors.expand(len(ids), width, width), self.sizes)
