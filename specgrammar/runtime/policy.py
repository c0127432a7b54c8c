"""Eager or lazy masking: what can be used, and which costs less here.

The committed tokens are the same, so the choice is one of time alone. What a step costs from its launch to its
paths is

    eager   max(forward, live rows * fill) + upload + apply + draw
    lazy    forward + draw + walk + share of steps with an illegal choice * (fill + upload + apply + draw)

and a lazy step may commit less, since its walk ends at an illegal choice where a second draw is a trip to the
device. Every part depends on machine, model, grammar and load. `auto` therefore measures both in its first
steps of a size class (nodes of the batch, by powers of two), takes what costs less per token, and stays with
it. A trial waits for its paths: what eager masking gains where steps overlap with each other is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specgrammar.errors import ConfigError
from specgrammar.protocols.target import TargetModel
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.masking import EagerMasking, LaunchedStep, MaskParts, MaskPolicy, PolicyName, Verified
from specgrammar.spec.sampling import AcceptMethod, MaskPolicyChoice

Agree = Callable[[PolicyName], PolicyName]
"""Called once per decision with this replica's choice, returns everybody's, e.g. rank 0's by a broadcast."""

_NUM_TRIALS = 12
"""Steps of each policy before a decision, the first of which only warms up."""
_BETTER = 0.98
"""Lazy has to be this much cheaper: a tie goes to what hides under the forward."""


def why_not_lazy(target: TargetModel, method: AcceptMethod) -> str:
    """Why rows of this target cannot be masked behind a first draw; empty where they can."""
    if method == "rejection":
        return "rejection sampling compares drafts with the masked distribution, so every row is masked first"
    if getattr(target, "supports_resample", False) is not True:
        return "the target does not say supports_resample: its logits may be drawn from only once"
    return ""


def mask_policy(choice: MaskPolicyChoice, parts: MaskParts, target: TargetModel, agree: Agree) -> MaskPolicy:
    """The policy by name; `auto` is `eager` where lazy masking cannot be used.

    Raises ConfigError where lazy masking is asked for and cannot be used.
    """
    reason = why_not_lazy(target, parts.method)
    if choice == "lazy" and reason:
        raise ConfigError(f"mask_policy 'lazy': {reason}; use 'eager' or 'auto'")
    if choice == "eager" or reason:
        return EagerMasking(parts, "" if choice == "eager" else reason)
    return LazyMasking(parts) if choice == "lazy" else AutoMasking(parts, agree)


@dataclass
class Trials:
    """What was measured for one size class: seconds from launch to paths, and tokens lost, by policy.

    Attributes:
        seconds: of each step, in order.
        num_tokens: that lazy steps committed.
        num_lost: tokens that lazy steps would have committed besides, had they not ended at an illegal choice.
        chosen: the decision; None while trying.
    """

    seconds: dict[PolicyName, list[float]] = field(default_factory=dict)
    num_tokens: int = 0
    num_lost: float = 0.0
    chosen: PolicyName | None = None

    @property
    def costs(self) -> dict[PolicyName, float]:
        """Seconds for what a lazy step commits: medians, without the first step of each, which warms up."""
        medians: dict[PolicyName, float] = {
            name: statistics.median(spent[1:] or spent) for name, spent in self.seconds.items() if spent
        }
        if "eager" in medians and self.num_tokens:
            medians["eager"] /= 1 + self.num_lost / self.num_tokens
        return medians


class AutoMasking:
    """Tries both policies in turns, decides once per size class, and says why.

    Attributes:
        trials: by size class: batches of fewer than `2 ** class` nodes.
    """

    def __init__(self, parts: MaskParts, agree: Agree) -> None:
        """Nothing is decided yet."""
        self.trials: dict[int, Trials] = defaultdict(Trials)
        self._policies: dict[PolicyName, MaskPolicy] = {
            "eager": EagerMasking(parts),
            "lazy": LazyMasking(parts),
        }
        self._agree = agree

    def verify(self, step: LaunchedStep) -> Verified:
        """See `MaskPolicy`."""
        trials = self.trials[step.tree.num_nodes.bit_length()]
        if trials.chosen is not None:
            return self._policies[trials.chosen].verify(step)
        num_tried = {name: len(trials.seconds.setdefault(name, [])) for name in self._policies}
        name: PolicyName = "eager" if num_tried["eager"] <= num_tried["lazy"] else "lazy"
        verified = self._policies[name].verify(step)
        paths = verified.paths.wait()
        verified = replace(verified, is_known=True)
        trials.seconds[name].append(time.perf_counter() - step.launched_at)
        if name == "lazy":
            num_tokens = int(paths.accept_length.sum() + (paths.bonus_token >= 0).sum())
            trials.num_tokens += num_tokens
            # A path that could have gone on is taken to go on as far as an average one.
            trials.num_lost += verified.num_cut * num_tokens / len(step.batch)
        if all(len(spent) >= _NUM_TRIALS for spent in trials.seconds.values()):
            costs = trials.costs
            cheaper: PolicyName = "lazy" if costs["lazy"] < _BETTER * costs["eager"] else "eager"
            trials.chosen = self._agree(cheaper)
        return verified


def describe(policy: MaskPolicy) -> str:
    """Which policy is used and why, in one line."""
    if isinstance(policy, EagerMasking):
        return f"eager: {policy.why}" if policy.why else "eager"
    if not isinstance(policy, AutoMasking):
        return "lazy"
    said = []
    for size, trials in sorted(policy.trials.items()):
        costs = ", ".join(f"{name} {1e3 * spent:.2f} ms" for name, spent in sorted(trials.costs.items()))
        said.append(f"{trials.chosen or 'trying both'} below {2**size} nodes ({costs})")
    return f"auto: {'; '.join(said) or 'no step yet'}"
