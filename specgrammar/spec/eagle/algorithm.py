"""`eagle`: chains and trees of a trained draft head that reads the target's features."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specgrammar.checks import check_choice, check_int, refused
from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import (
    ALGORITHM_API_VERSION,
    ProducerContext,
    Proposal,
    Topology,
    TreeProducer,
)

if TYPE_CHECKING:
    from specgrammar.protocols.target import SupportsFeatures

SHIPPED = "smollm2-135m-instruct"
"""The head that comes with the package, for the default model."""
_SHIPPED_HEADS = Path(__file__).parent / "heads"


@dataclass(frozen=True)
class EagleAlgorithm:
    """Drafts of a head in the layouts of EAGLE-1, 2 and 3.

    Attributes:
        head: a local folder with a checkpoint, or the name of a head that is shipped.
        num_steps: how deep a tree is.
        topk: nodes that are expanded at a depth, and children that each of them is given; 1 drafts chains.
        num_draft_tokens: nodes that are verified, the root included: the most probable ones of a tree.
        grammar_aware: mask the head's own logits by the grammar, so that no node is illegal. The grammar has to
            advance before each draft then, and nothing of that is hidden under the forward.
        budget: draft tokens of a step and request on average, the most probable of the batch: a number, or
            `auto` to stop each branch that does not pay for its verification, by the measured costs of this
            machine's steps and by what is accepted (see `budget`). What is cut stays as padding: shapes do not
            change. None: all.
    """

    head: str = SHIPPED
    num_steps: int = 4
    topk: int = 4
    num_draft_tokens: int = 16
    grammar_aware: bool = False
    budget: int | Literal["auto"] | None = None
    api_version: Literal[1] = field(default=ALGORITHM_API_VERSION, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.head, str) or not self.head:
            raise refused("eagle: head", self.head, "a folder, or the name of a shipped head")
        check_int("eagle: num_steps", self.num_steps, 1)
        check_int("eagle: topk", self.topk, 1)
        check_choice("eagle: grammar_aware", self.grammar_aware, (False, True))
        most = 1 + self.topk + self.topk**2 * (self.num_steps - 1)
        check_int("eagle: num_draft_tokens", self.num_draft_tokens, 2, most)
        if self.budget is not None and self.budget != "auto":
            check_int("eagle: budget (auto, or a number)", self.budget, 1)

    @property
    def topology(self) -> Topology:
        """Chains where one node is expanded at a depth, else trees."""
        kind: Literal["chain", "tree"] = "chain" if self.topk == 1 else "tree"
        return Topology(kind, self.num_draft_tokens, min(self.num_steps, self.num_draft_tokens - 1))

    @property
    def proposal(self) -> Proposal:
        """POINT: the best tokens are taken, none is drawn."""
        return Proposal.POINT

    def supports_grammar_overlap(self) -> bool:
        """True unless drafts read the grammar."""
        return not self.grammar_aware

    def make_producer(self, context: ProducerContext) -> TreeProducer:
        """Load the head beside its target.

        Raises:
            ConfigError: the target gives no features, or there is no such head.
            ModelError: the head belongs to another target, or its files are broken.
        """
        from specgrammar.spec.eagle.checkpoint import load_head
        from specgrammar.spec.eagle.producer import EagleProducer

        target: SupportsFeatures | None = context.target
        if target is None or not hasattr(target, "watch"):
            raise ConfigError(
                "eagle: the target gives no features; use an adapter whose target has `watch` and "
                "`take_features` (transformers), or another algorithm"
            )
        shared = target.shared
        head = load_head(self._folder(), shared.embedding, shared.output, shared.num_layers)
        target.watch(head.config.feature_layers)
        return EagleProducer(self, head, target, context)

    def _folder(self) -> Path:
        for folder in (Path(self.head), _SHIPPED_HEADS / self.head):
            if folder.is_dir():
                return folder
        raise refused("eagle: head", self.head, f"a folder, or {SHIPPED!r}")
