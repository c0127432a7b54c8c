"""What a target drew at every node of a batch, as lazy masking reads it on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import MatcherError

NO_SHORT_ID = 0xFFFF
"""No token, among ids of two bytes; among others it is -1."""
_SHORT = 2


class Draws(NamedTuple):
    """The draws, by flat index of the node."""

    best: NDArray[np.int32] | NDArray[np.uint16]
    """`[num_nodes, num_best]`, C-contiguous: the draw, -1 (or `NO_SHORT_ID`) for none, and behind it what would
    be drawn if those before were forbidden."""
    num_sure: NDArray[np.int32]
    """`[num_nodes]`: how many of `best` come in this order for certain. The draw holds in any case."""
    logits: torch.Tensor | None = None
    """What greedy draws were made from, `[num_nodes, columns]` with padded columns at -inf, where
    `can_draw_on_cpu`. Then whatever is refused is drawn again from them, not from `best`."""

    @property
    def has_short_ids(self) -> bool:
        """Whether ids have two bytes; MatcherError where they have neither these nor four."""
        if self.best.dtype not in (np.uint16, np.int32):
            raise MatcherError(f"draws are {self.best.dtype}; expected int32 or uint16")
        return self.best.itemsize == _SHORT

    def drawn(self, node: int) -> int:
        """The draw at a node, -1 for none."""
        token = int(self.best[node, 0])
        return -1 if token == NO_SHORT_ID and self.best.itemsize == _SHORT else token

    def next_best(self, node: int) -> list[int]:
        """What would be drawn at a node if the draw were forbidden, then if that were, and so on."""
        tokens: list[int] = self.best[node, 1 : self.num_sure[node]].tolist()
        return tokens


def short_id_dtype(num_ids: int) -> torch.dtype:
    """The shortest integers for ids below `num_ids` and for none: bringing them back takes time."""
    return torch.uint16 if num_ids <= NO_SHORT_ID else torch.int32
