"""`GrammarMask`: one step's rows, from host memory to the logits."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.apply_on_cpu import apply_on_cpu
from specgrammar.grammar.draw_on_cpu import draw_on_cpu
from specgrammar.grammar.rows import MaskRows
from specgrammar.protocols.staging import BitmaskSlot, Device, Event


class GrammarMask:
    """The bitmask rows of a step, which logits row each is for, and what each node is.

    Use it once: `upload` before the sampler, on the stream of the forward; then `apply`. As a context manager
    it gives its memory back also where the step fails in between. Only rows of live nodes exist. Rows of free
    nodes are left alone, and dead nodes (rejected, ended, padding) have none: that nobody accepts them is
    `status`'s work, which the acceptance reads.

    Attributes:
        status: int8 `[num_nodes]` of `NodeStatus`.
        num_rows: rows of the mask; a few may belong to no node.
        vocab_size: columns at or above it are padding and become -inf in every row.
    """

    def __init__(self, rows: MaskRows, slot: BitmaskSlot, device: Device, vocab_size: int) -> None:
        """Take over a slot whose rows and owners `rows` was written to."""
        self.status: NDArray[np.int8] = rows.status
        self.num_rows: int = rows.num_rows
        self.vocab_size = vocab_size
        self._device = device
        self._slot: BitmaskSlot | None = slot
        self._uploaded: Event | None = None

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the memory back if nobody did."""
        self.discard()

    @property
    def bitmask(self) -> NDArray[np.int32]:
        """The rows on the host, int32 `[num_rows, num_words]`; readable until `apply` or `discard`."""
        return self._held_slot().rows[: self.num_rows]

    @property
    def row_of_node(self) -> NDArray[np.int32]:
        """The mask row of a live node, -1 for all others, int32 `[num_nodes]`; until `apply` or `discard`."""
        owners = self._held_slot().owners[: self.num_rows]
        # One entry more, for the rows without an owner: -1 is the last one.
        rows = np.full(len(self.status) + 1, -1, np.int32)
        rows[owners] = np.arange(len(owners), dtype=np.int32)
        return rows[:-1]

    def upload(self) -> None:
        """Enqueue the copy of rows and owners to the device, and an event behind both.

        The mask keeps its memory until `apply` or `discard`: the copy reads the host's, `apply` the device's.
        A device that shares host memory gets no copy.
        """
        slot = self._held_slot()
        if self._uploaded is not None:
            raise SpecGrammarError("upload twice: a mask belongs to one step")
        if self.num_rows and not self._device.shares_host_memory:
            tensors = slot.tensors(self.num_rows)
            self._device.copy(tensors.device_rows, tensors.host_rows)
            self._device.copy(tensors.device_owners, tensors.host_owners)
        self._uploaded = self._device.record()

    def apply(self, logits: torch.Tensor) -> None:
        """Set what the grammar forbids to -inf, in place, and give the memory back behind the upload.

        On an accelerator this is enqueued on the current stream, on the CPU it is done when the call returns.

        Args:
            logits: float `[num_nodes, columns]`, row i for node i; `columns` may exceed the vocabulary.
        """
        rows, owners = self._uploaded_for(logits)
        if logits.shape[1] > self.vocab_size:
            logits[:, self.vocab_size :] = -torch.inf
        columns = min(logits.shape[1], self.vocab_size)
        if logits.is_cpu:
            apply_on_cpu(logits, rows.numpy(), owners.tolist(), columns)
        else:
            from specgrammar.grammar.kernels import apply_rows

            apply_rows(logits, rows, owners, columns)
        self.discard()

    def draw_greedily(self, logits: torch.Tensor) -> dict[int, int]:
        """Draw the masked argmax of each node that has a row, and give the memory back; on the CPU alone.

        Args:
            logits: as for `apply`, and such that `can_draw_on_cpu`; they stay as they are.

        Returns:
            The token of each node, -1 where nothing may be drawn (see `draw_on_cpu`).
        """
        rows, owners = self._uploaded_for(logits)
        tokens = draw_on_cpu(logits, rows, owners, min(logits.shape[1], self.vocab_size))
        drawn = dict(zip(owners.tolist(), tokens, strict=True))
        self.discard()
        return drawn

    def discard(self) -> None:
        """Give the memory back where the mask is not applied after all; calling it again does nothing."""
        if self._slot is not None:
            self._slot.release(self._uploaded)
            self._slot = None

    def _uploaded_for(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and owners where logits are."""
        slot = self._held_slot()
        if self._uploaded is None:
            raise SpecGrammarError("apply before upload: call mask.upload() first")
        check_logits(logits, len(self.status))
        if logits.is_cpu:
            self._uploaded.wait()  # the host reads them here, and the host is in no stream's order
        tensors = slot.tensors(self.num_rows)
        return tensors.device_rows, tensors.device_owners

    def _held_slot(self) -> BitmaskSlot:
        if self._slot is None:
            raise SpecGrammarError("this mask was applied or discarded; its memory belongs to a later step")
        return self._slot


def check_logits(logits: torch.Tensor, num_nodes: int) -> None:
    """Raise SpecGrammarError for logits that have not a row for each node."""
    shape = logits.shape
    if len(shape) != 2 or shape[0] != num_nodes:
        raise SpecGrammarError(
            f"logits have shape {tuple(shape)}; expected a row for each of {num_nodes} nodes"
        )
