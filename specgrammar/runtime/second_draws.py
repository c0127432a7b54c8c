"""Rows for choices that the grammar refused: filled on the walk, brought to the logits, drawn from again."""

from __future__ import annotations

from typing import Self

import torch

from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.protocols.staging import BitmaskSlot
from specgrammar.runtime.masking import MaskParts


class SecondDraws:
    """The rows that a step fills for second draws, and the masks that bring them to the logits.

    Attributes:
        num_rows: rows that were drawn from.
        at_once: whether bringing a row to the logits is no trip to a device.
    """

    def __init__(self, parts: MaskParts, capacity: int, num_nodes: int, logits: torch.Tensor) -> None:
        """Nothing is filled; memory for `capacity` rows is taken when somebody may fill one."""
        self.num_rows: int = 0
        self.at_once: bool = parts.device.shares_host_memory
        self._parts, self._capacity, self._num_nodes, self._logits = parts, capacity, num_nodes, logits
        self._filled: tuple[MaskRows, BitmaskSlot] | None = None

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Give back what was filled and not applied."""
        if self._filled is not None:
            self._filled[1].release(None)

    def rows(self) -> MaskRows:
        """Where rows are filled."""
        if self._filled is None:
            slot = self._parts.allocator.acquire(self._capacity)
            self._filled = MaskRows(slot.rows, self._num_nodes, slot.owners), slot
        return self._filled[0]

    def fill(self, session: GrammarSession, node: int) -> None:
        """Fill a row for the node (flat index) that the session's grammar stands behind."""
        session.fill_ahead(self.rows(), node)

    def offers(self, node: int) -> bool:
        """Whether the node has a row that allows something."""
        return self._filled is not None and self._filled[0].statuses[node] == NodeStatus.LIVE

    def apply(self) -> None:
        """Mask the logits of all nodes that were filled since the last call."""
        if self._has_rows():
            with self._parts.trace.span("resample"), self._mask() as mask:
                mask.upload()
                vocab_size = self._parts.vocabulary.vocab_size
                mask.apply(self._logits[:, :vocab_size])  # further columns are masked already

    def draw_greedily(self) -> dict[int, int]:
        """Draw at all nodes that were filled since the last call, from logits that stay unmasked.

        Returns the token of each node, -1 where nothing may be drawn.
        """
        if not self._has_rows():
            return {}
        with self._parts.trace.span("resample"), self._mask() as mask:
            mask.upload()
            return mask.draw_greedily(self._logits)

    def _has_rows(self) -> bool:
        return self._filled is not None and self._filled[0].num_rows > 0

    def _mask(self) -> GrammarMask:
        """What was filled since the last call."""
        assert self._filled is not None
        mask = GrammarMask(*self._filled, self._parts.device, self._parts.vocabulary.vocab_size)
        self._filled = None
        self.num_rows += mask.num_rows
        return mask
