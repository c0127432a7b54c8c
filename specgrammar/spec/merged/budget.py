"""How many nodes a step verifies: as many as pay for themselves.

A node pays while the tokens that it is expected to add are worth the time that it adds, which is measured
(`step_costs`).
"""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.spec.step_costs import Agree, StepCosts, StepTimer, Trials


class NodeBudget:
    """Decides how many of a step's drafts are verified.

    Replicas decide alike where they agree on the number (`agree`): times differ from one to the other.
    """

    def __init__(self, agree: Agree = lambda number: number) -> None:
        """Nothing was measured."""
        self._agree = agree
        self._timer, self._trials = StepTimer(), Trials()
        self._costs: dict[int, StepCosts] = {}
        self._bs = self._num_nodes = 0  # of the step that runs

    def begin(self, requests: Sequence[str]) -> None:
        """A step of these requests begins, so that what the one before took is known."""
        seconds = self._timer.begin(requests)
        if seconds is not None:
            self._costs.setdefault(self._bs, StepCosts()).add(self._num_nodes, seconds)
        self._bs = self._num_nodes = len(requests)

    def choose(self, chances: Sequence[float], bs: int) -> int:
        """How many of the drafts, the likeliest first, are verified.

        Args:
            chances: the probability that each draft is taken, falling.
            bs: requests of the step, whose roots are verified in any case.
        """
        share = self._trials.next_share(bs)
        if share is not None:
            number = round(len(chances) * share)
        else:
            number = self._agree(self._best(chances, bs) if bs in self._costs else len(chances))
        self._num_nodes = bs + number
        return number

    def _best(self, chances: Sequence[float], bs: int) -> int:
        """The number with the most tokens a second."""
        curve = self._costs[bs].curve(bs + len(chances))
        tokens, best, number = float(bs), 0.0, 0
        for index in range(len(chances) + 1):
            if tokens / curve[bs + index] > best:
                best, number = tokens / curve[bs + index], index
            if index < len(chances):
                tokens += chances[index]
        return number
