"""What the model's layers computed of the tokens that are kept, for a draft head that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class FeatureLog:
    """Features of each request's tokens, until they are taken; all calls but `watch` are the stream's.

    Attributes:
        layers: what is kept (`protocols.target.SupportsFeatures`); empty while nobody watches.
    """

    def __init__(self) -> None:
        """Nobody watches."""
        self.layers: tuple[int, ...] = ()
        self._seen: torch.Tensor | None = None
        self._fresh: dict[str, list[torch.Tensor]] = {}

    def see(self, output: Any) -> None:
        """Look at a forward of a model, with its hidden states."""
        if self.layers:
            self._seen = torch.cat([output.hidden_states[layer] for layer in self.layers], dim=-1)

    def keep(self, request_ids: Sequence[str], rows: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
        """Append features of the last forward.

        Args:
            request_ids: by row of that forward.
            rows: int64 `[n]`, ascending.
            nodes: int64 `[n]`, the places in the rows.
        """
        if not self.layers:
            return
        assert self._seen is not None
        kept = self._seen[torch.from_numpy(rows), torch.from_numpy(nodes)]
        counts = np.bincount(rows, minlength=len(request_ids)).tolist()
        for request_id, part in zip(request_ids, torch.split(kept, counts), strict=True):
            if len(part):
                self._fresh.setdefault(request_id, []).append(part)

    def take(self, request_id: str) -> torch.Tensor:
        """What was kept of a request since the last call, `[tokens, features]`; no rows for nothing."""
        parts = self._fresh.pop(request_id, [])
        return torch.cat(parts) if parts else torch.empty(0, 0)

    def forget(self, request_id: str) -> None:
        """Drop what nobody has taken."""
        self._fresh.pop(request_id, None)
