"""Which branches of a tree are verified: those that pay for it.

The rule. b roots and drafts that are accepted with chances p_i are verified in `fixed + cost * (number of
drafts)` seconds, and a set S of drafts gives tokens at the rate

    rate(S) = (b + sum of p_i in S) / (fixed + cost * |S|)

Let r be a rate that is reached now. rate(S) > r means b - r * fixed + sum of (p_i - r * cost) in S > 0, whose
left side is largest for S = {i: p_i > r * cost}: the drafts whose chance, times the time of a token (1 / r), is
more than what a node costs. So to verify these is never slower than what was done, and at the best rate they
are the best set. The rate is measured again with each step, so it comes to the best one (Dinkelbach, 1967).
While nothing is drafted, 1 / r is the time of a token of ordinary decoding; where drafts are accepted a token
takes less, an accepted draft saves less, and a node has to be more probable.

A chance is the product of the head's probabilities on the path, times what is accepted of what the head
expects: a head may be too sure, and does not know what a grammar forbids. A path's product falls, so a branch
that is cut is cut whole, and what is left is a tree. All that a step is told is one number, which is known when
it is launched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Device, Event
from specgrammar.spec.step_costs import Agree, StepCosts, StepTimer, Trials

_MEMORY = 64.0
"""About how many steps are remembered, so that what is accepted follows what the requests are like."""
_TRUST = 4.0
"""The head's word counts as much as so many drafts. Where nothing is verified for long it is believed again."""
_PARTS = 1 << 20
"""A chance that replicas agree on is a whole number of such parts of 1."""


def least_chance(node_s: float, token_s: float, calibration: float = 1.0) -> float:
    """The product of a head's probabilities above which a node pays; 0 where nodes are free, at most 1.

    Args:
        node_s: seconds that one more node costs a step, at least 0.
        token_s: seconds that a token costs now.
        calibration: what is accepted of what the head expects.
    """
    worth_s = token_s * calibration
    return min(1.0, node_s / worth_s) if node_s < worth_s else float(node_s > 0)


@dataclass(frozen=True, eq=False)
class Cut:
    """Leaves out the drafts of a step that are not verified; they become padding.

    Attributes:
        least: a draft that is kept has a log-probability above it.
        most: drafts of the batch that are kept, the most probable; None for all.
        kept: float32 `[2]`, where the work writes how many were kept, and how many of them the head expects to
            be accepted; None where nobody asks.
    """

    least: float = -math.inf
    most: int | None = None
    kept: Tensor | None = None

    def __call__(self, scores: Tensor) -> Tensor:
        """The scores, -inf for what is cut: never waits for the device.

        Args:
            scores: float32 `[bs, n]`, log-probabilities, -inf for no draft; a parent's stands in front of its
                children's and is not below them. Of equal ones the first are kept.
        """
        scores = scores.masked_fill(scores <= self.least, -torch.inf)
        if self.most is not None:
            flat = scores.flatten()
            over = flat.sort(descending=True, stable=True).indices[self.most :]
            scores = flat.index_fill(0, over, -torch.inf).view_as(scores)
        if self.kept is not None:
            self.kept.copy_(torch.stack(((scores > -torch.inf).sum().float(), scores.exp().sum())))
        return scores


@dataclass
class _Step:
    """A step that was launched, and what the host is told of it."""

    bs: int
    kept: Tensor
    copied: Event | None = None  # says that `kept` may be read
    seconds: float | None = None


class BranchBudget:
    """Decides what a step cuts, by the costs of the steps before and what was accepted in them.

    Replicas cut alike where they agree on the number (`agree`): times differ from one to the other.
    """

    def __init__(self, num_drafts: int, device: Device, agree: Agree = lambda number: number) -> None:
        """Nothing was measured.

        Args:
            num_drafts: most drafts of a request.
            device: where drafts are made.
            agree: see `ProducerContext`.
        """
        self._num_drafts, self._device, self._agree = num_drafts, device, agree
        self._timer, self._trials = StepTimer(), Trials()
        self._costs: dict[int, StepCosts] = {}
        self._steps: list[_Step] = []  # that nobody has looked at yet
        # Faded sums over the steps: requests, drafts, and of these how many the head expects to be accepted and
        # how many were.
        self._num_requests = self._num_kept = self._expected = self._accepted = 0.0

    def begin(self, requests: Sequence[str]) -> Cut:
        """A step of these requests begins: what it cuts. `launched` is called behind its launch."""
        bs, seconds = len(requests), self._timer.begin(requests)
        if self._steps:
            self._steps[-1].seconds = seconds
        self._look_back()
        self._steps.append(_Step(bs, torch.zeros(2, device=self._device.torch_device)))
        kept, share = self._steps[-1].kept, self._trials.next_share(bs)
        if share is not None:
            return Cut(most=round(share * bs * self._num_drafts), kept=kept)
        parts = self._agree(round(self._least_chance(bs) * _PARTS))
        return Cut(math.log(parts / _PARTS) if parts > 0 else -math.inf, kept=kept)

    def launched(self) -> None:
        """The step's draft is launched: bring to the host what was kept."""
        step = self._steps[-1]
        on_host = torch.zeros(2, pin_memory=self._device.can_pin)
        self._device.copy(on_host, step.kept)
        step.kept, step.copied = on_host, self._device.record()

    def observe(self, commits: Sequence[Commit]) -> None:
        """Count what was accepted."""
        self._accepted += sum(commit.num_accepted for commit in commits)

    def _look_back(self) -> None:
        """Read of all steps but the last, whose draft may be in flight, what they cost and kept."""
        while len(self._steps) > 1:
            step = self._steps.pop(0)
            if step.copied is None:
                continue  # nothing was drafted, and nobody may wait for the device
            step.copied.wait()  # it is: the step behind it was launched
            num_kept, expected = step.kept.tolist()
            if step.seconds is not None:
                self._costs.setdefault(step.bs, StepCosts()).add(step.bs + round(num_kept), step.seconds)
            fade = 1.0 - 1.0 / _MEMORY
            self._num_requests = self._num_requests * fade + step.bs
            self._num_kept = self._num_kept * fade + num_kept
            self._expected = self._expected * fade + expected
            self._accepted *= fade

    def _least_chance(self, bs: int) -> float:
        """The chance that a node has to exceed, with nodes' costs taken as a straight line."""
        if bs not in self._costs or not self._num_requests:
            return 0.0
        curve = self._costs[bs].curve(bs * (1 + self._num_drafts))
        node_s = (curve[-1] - curve[bs]) / (bs * self._num_drafts)
        accepted, kept = self._accepted / self._num_requests, self._num_kept / self._num_requests
        token_s = (curve[bs] / bs + node_s * kept) / (1.0 + accepted)
        return least_chance(node_s, token_s, (self._accepted + _TRUST) / (self._expected + _TRUST))
