"""Adapters: what an engine of ours needs of a model runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from specgrammar.protocols.drafter import CausalDrafter
    from specgrammar.protocols.grammar import Vocabulary
    from specgrammar.protocols.staging import Device
    from specgrammar.protocols.target import TargetModel

ADAPTER_API_VERSION: Literal[1] = 1
"""What an adapter built against this file declares as its `api_version`."""


class EngineAdapter(Protocol):
    """A model, its vocabulary and its device, ready for the decode loop.

    The entry point in `specgrammar.adapters` is a class with `load(model, *, device, dtype, max_batch_size)`
    that returns one; `specgrammar generate` also uses its `encode_prompt(text)` and `encode_raw(text)`, both to
    lists of token ids.
    """

    @property
    def target(self) -> TargetModel:
        """The model that verifies."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokenizer, as grammars see it."""
        ...

    @property
    def device(self) -> Device:
        """Where its logits are."""
        ...

    def load_drafter(self, name: str) -> CausalDrafter:
        """Load a causal draft model on the same device; raises ModelError where that cannot be."""
        ...
