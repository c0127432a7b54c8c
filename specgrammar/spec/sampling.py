"""How the target samples for one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from specgrammar.checks import check_choice, check_int, check_number

AcceptMethod = Literal["target_only", "rejection"]
"""`target_only` draws from the target alone; `rejection` uses the distributions that drafts were drawn from."""

MaskPolicyChoice = Literal["eager", "lazy", "auto"]
"""`eager` masks all live rows, `lazy` those where the target chose what is illegal, `auto` measures both."""


def check_accept_method(what: str, method: object) -> None:
    """Refuse what is no `AcceptMethod`; raises ConfigError, in which `what` is the name of the value."""
    check_choice(what, method, get_args(AcceptMethod))


def check_mask_policy(what: str, policy: object) -> None:
    """Refuse what is no `MaskPolicyChoice`; raises ConfigError, in which `what` is the name of the value."""
    check_choice(what, policy, get_args(MaskPolicyChoice))


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request. The grammar's mask comes first, then they apply in this order.

    Penalties, logit bias and min-tokens are not among them: under a tree each node would need its own
    ancestry's counts, and a batch-wide approximation would change the law. They are refused by name.

    Attributes:
        temperature: 0 is greedy (argmax, lowest id wins a tie); otherwise logits are divided by it.
        top_k: keep the k most probable tokens, in [0, 2**31); 0 keeps all. Ties at the border are kept.
        top_p: keep the smallest set of most probable tokens whose mass reaches it, in (0, 1].
        min_p: keep tokens with at least this share of the most probable one's probability, in [0, 1].
        seed: the noise of this request, in [0, 2**63). Same seed, same tokens, whatever the batch, the
            algorithm or the schedule.
        truncates: whether some tokens are cut for what the others are, so that the mask has to come before.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    truncates: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("sampling: temperature", self.temperature, 0)
        check_int("sampling: top_k", self.top_k, 0)
        check_number("sampling: top_p", self.top_p, 0, 1, above=True)
        check_number("sampling: min_p", self.min_p, 0, 1)
        check_int("sampling: seed", self.seed, 0, 2**63 - 1)
        cuts = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        object.__setattr__(self, "truncates", cuts and not self.greedy)

    @property
    def greedy(self) -> bool:
        """Whether the argmax is taken."""
        return self.temperature == 0.0
