"""`eagle` without a model: a random head for the kit's toy target."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import torch

from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.eagle.checkpoint import save_head
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.testing.late_target import HIDDEN_SIZE, LateTarget
from specgrammar.testing.toys import VOCABULARY


@cache
def head_folder() -> str:
    """A random head of the EAGLE-1 layout, written once."""
    shared = LateTarget(InlineDevice()).shared
    config = EagleConfig("eagle", HIDDEN_SIZE, 2, 2, 8, 24, VOCABULARY.vocab_size, HIDDEN_SIZE, (LAST,))
    torch.manual_seed(2)
    folder = Path(tempfile.mkdtemp(prefix="specgrammar-head-"))
    save_head(folder, EagleHead(config, shared.embedding, shared.output), torch.float32)
    return str(folder)


def toy_eagle(
    topk: int, num_steps: int, num_draft_tokens: int, *, grammar_aware: bool = False
) -> EagleAlgorithm:
    """The algorithm with a shape."""
    return EagleAlgorithm(head_folder(), num_steps, topk, num_draft_tokens, grammar_aware)
