"""Masks built ahead of a stream that has not come to them, as an engine on an accelerator does.

There the kernels that read a mask are only enqueued when its memory goes back to the ring, so that the event
of the upload alone keeps the next step's rows out of it. On the CPU the host waits for every mask that it
applied, and the engine never has two on their way: what guards the ring is seen here only.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from specgrammar.grammar.apply_on_cpu import apply_on_cpu
from specgrammar.grammar.bitmask import BitmaskRing, RingSlot
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Resolved
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.schedules import Choose
from specgrammar.testing.toys import GRAMMARS, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.toys import backend, compiled, legal_ids, matcher

_BACKEND = "xgrammar"


class LastSlot(BitmaskRing):
    """A ring that remembers what it handed out last."""

    slot: RingSlot

    def acquire(self, num_rows: int) -> RingSlot:
        """See `BitmaskRing`."""
        self.slot = super().acquire(num_rows)
        return self.slot


def run_masks(choose: Choose) -> None:
    """Build, upload and enqueue some steps' masks; the logits of each must show its own rows."""
    device = DelayedDevice(lambda num_pending: choose(num_pending + 1) if not choose(3) else 0)
    ring = LastSlot(device, VOCABULARY.num_words, num_slots=1 + choose(3))
    steps = []
    for _ in range(3 + choose(6)):
        specs = [GRAMMARS[choose(len(GRAMMARS))] for _ in range(1 + choose(3))]
        sessions = [
            GrammarSession(VOCABULARY, backend(_BACKEND).matcher(compiled(_BACKEND, spec))) for spec in specs
        ]
        tree = HostTree.roots([0] * len(specs))
        mask = build_grammar_mask(sessions, Resolved(tree), ring, device, VOCABULARY)
        logits = torch.zeros(len(specs), VOCABULARY.vocab_size)
        mask.upload()
        _, rows, _, owners = ring.slot.tensors(mask.num_rows)
        device.launch(partial(_apply, logits, rows, owners), "apply")
        mask.discard()
        steps.append((specs, logits))
    device.run_all()
    for specs, logits in steps:
        for spec, row in zip(specs, logits, strict=True):
            expected = legal_ids(matcher(_BACKEND, spec))
            assert np.flatnonzero(row.numpy() == 0).tolist() == expected, "a row of another step's"


def _apply(logits: torch.Tensor, rows: torch.Tensor, owners: torch.Tensor) -> None:
    apply_on_cpu(logits, rows.numpy(), owners.tolist(), VOCABULARY.vocab_size)
