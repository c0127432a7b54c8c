"""`GrammarMask`: one step's rows, from host memory to the logits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from specgrammar.errors import SpecGrammarError
from specgrammar.grammar.rows import MaskRows
from specgrammar.protocols.staging import BitmaskSlot, Device


class GrammarMask:
    """The bitmask rows of a step, which logits row each is for, and what each node is.

    Use it once: `upload` before the sampler, on the stream of the forward; then `apply`. Only rows of live
    nodes exist. Rows of free nodes are left alone, and dead nodes (rejected, ended, padding) have none: that
    nobody accepts them is `status`'s work, which the acceptance reads.

    Attributes:
        status: int8 `[num_nodes]` of `NodeStatus`.
        row_of_node: int32 `[num_nodes]`, the mask row of a live node, -1 for all others.
        num_rows: rows that are uploaded.
        vocab_size: columns at or above it are padding and become -inf in every row.
    """

    def __init__(self, rows: MaskRows, slot: BitmaskSlot, device: Device, vocab_size: int) -> None:
        """Take over a slot that `rows` was filled in."""
        self.status = rows.status
        self.row_of_node = rows.row_of_node
        self.num_rows = rows.num_rows
        self.vocab_size = vocab_size
        self._device = device
        self._slot: BitmaskSlot | None = slot
        self._rows: torch.Tensor | None = None
        self._owners = _owners(rows)

    @property
    def bitmask(self) -> NDArray[np.int32]:
        """The rows on the host, int32 `[num_rows, num_words]`; readable until `upload`."""
        if self._slot is None:
            raise SpecGrammarError("this mask was uploaded or discarded; its host rows belong to a later step")
        return self._slot.rows[: self.num_rows]

    def upload(self) -> None:
        """Enqueue the copy of the rows to the device and give the host memory back behind it.

        On the CPU nothing is copied: the rows are read in place by `apply`, which gives them back.
        """
        slot = self._held_slot("upload")
        device_rows = slot.device_tensor[: self.num_rows]
        if slot.device_tensor is not slot.tensor:
            if self.num_rows:
                self._device.copy(device_rows, slot.tensor[: self.num_rows])
            slot.release(self._device.record())
            self._slot = None
            self._owners = self._owners.to(self._device.torch_device, non_blocking=True)
        self._rows = device_rows

    def apply(self, logits: torch.Tensor) -> None:
        """Set what the grammar forbids to -inf, in place.

        Args:
            logits: float `[num_nodes, columns]`, row i for node i; `columns` may exceed the vocabulary.
        """
        rows = self._rows
        if rows is None:
            raise SpecGrammarError("apply before upload: call mask.upload() first")
        if logits.dim() != 2 or len(logits) != len(self.status):
            raise SpecGrammarError(
                f"logits have shape {tuple(logits.shape)}; expected a row for each of {len(self.status)} nodes"
            )
        logits[:, self.vocab_size :] = -torch.inf
        columns = min(logits.shape[1], self.vocab_size)
        if logits.device.type == "cpu":
            _apply_on_cpu(logits, rows.numpy(), self._owners, columns)
        else:
            from specgrammar.grammar.kernels import apply_rows

            apply_rows(logits, rows, self._owners, columns)
        self.discard()

    def discard(self) -> None:
        """Give the memory back where the mask is not applied after all; calling it again does nothing."""
        if self._slot is not None:
            self._slot.release(None)
        self._slot = self._rows = None

    def _held_slot(self, what: str) -> BitmaskSlot:
        if self._slot is None or self._rows is not None:
            raise SpecGrammarError(f"{what} twice: a mask belongs to one step")
        return self._slot


def _owners(rows: MaskRows) -> torch.Tensor:
    """int32 `[num_rows]`: the node of each row; -1 for a row whose fill failed."""
    owners = np.full(rows.num_rows, -1, np.int32)
    live = np.flatnonzero(rows.row_of_node >= 0)
    owners[rows.row_of_node[live]] = live
    return torch.from_numpy(owners)


def _apply_on_cpu(logits: torch.Tensor, rows: NDArray[np.int32], owners: torch.Tensor, columns: int) -> None:
    """Row by row, so that the unpacked bits stay in the cache."""
    for row, owner in zip(rows, owners.tolist(), strict=True):
        if owner >= 0:
            illegal = np.unpackbits(~row.view(np.uint8), count=columns, bitorder="little").view(np.bool_)
            logits[owner, :columns].masked_fill_(torch.from_numpy(illegal), -torch.inf)
