"""Parts of an engine that fail once, where they are told to: what is behind such a step has to go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.drafter import CausalDrafter, Drafts
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.protocols.target import PendingLogits, TargetModel
from specgrammar.trees.tree import DraftTree


class DraftError(Exception):
    """What a drafter raises once."""


@dataclass
class FailingDrafts:
    """An adapter whose draft model fails once, and else does what it does."""

    adapter: EngineAdapter
    fails_at: int

    def __post_init__(self) -> None:
        self.target: TargetModel = self.adapter.target
        self.vocabulary: Vocabulary = self.adapter.vocabulary
        self.device: Device = self.adapter.device

    def load_drafter(self, name: str) -> CausalDrafter:
        """The adapter's; it fails at one of its calls."""
        return _FailingDrafter(self.adapter.load_drafter(name), self.fails_at)


@dataclass
class _FailingDrafter:
    """A draft model that fails once."""

    drafter: CausalDrafter
    left: int

    @property
    def vocab_size(self) -> int:
        """The drafter's."""
        return self.drafter.vocab_size

    def forget(self, request_id: str) -> None:
        """The drafter's."""
        self.drafter.forget(request_id)

    def draft(self, batch: DecodeBatch, num_tokens: int, *, sampled: bool) -> Drafts:
        """The drafter's, but for one."""
        self.left -= 1
        if self.left == 0:
            raise DraftError
        return self.drafter.draft(batch, num_tokens, sampled=sampled)


class LostForwardError(Exception):
    """What a forward raises once."""


@dataclass
class FailingForward:
    """A target whose n-th forward fails once, on the host or on the stream."""

    fails_at: int
    on_stream: bool
    adapter: Any = None
    target: Any = None

    def wrap(self, adapter: EngineAdapter) -> EngineAdapter:
        """Adapter and target in one, like `adapter`."""
        self.adapter, self.target = adapter, self
        self.device: Device = adapter.device
        self.vocabulary: Vocabulary = adapter.vocabulary
        self.load_drafter: Callable[[str], CausalDrafter] = adapter.load_drafter
        made: Any = self
        return made  # type: ignore[no-any-return]  # an adapter by its members

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter.target, name)

    def verify(self, batch: DecodeBatch, tree: DraftTree) -> PendingLogits:
        """The target's, but for one."""
        self.fails_at -= 1
        if self.fails_at == 0 and not self.on_stream:
            raise LostForwardError
        pending: PendingLogits = self.adapter.target.verify(batch, tree)
        if self.fails_at == 0:
            pending = self.adapter.device.launch(_lose, "forward")
        return pending


def _lose() -> None:
    raise LostForwardError
