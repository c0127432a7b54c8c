"""The fast path where one node is expanded at a depth and all of them are verified.

A chain's parents, links and order are known from its length, so nothing is sorted, gathered or built: a draft
token is written behind the one before. (sglang skips the same operations for `topk == 1` and
`num_draft_tokens == num_steps + 1`, with constants made for the largest batch; here nothing is left that a
constant would be needed for, and so there is none that a changed configuration could leave behind.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgrammar.spec.eagle.budget import Cut


def is_chain(topk: int, num_steps: int, num_draft_tokens: int) -> bool:
    """Whether every node that is drafted is verified, and none has a sibling."""
    return topk == 1 and num_draft_tokens == num_steps + 1


class ChainGrowth:
    """The draft chains of a batch while they grow; `Growth` of chains gives the same, slower.

    Attributes:
        frontier_tokens: the last tokens, int64 `[bs, 1]`.
        ancestors: bool `[bs, 1, length]`: every node before is on the path.
    """

    def __init__(self, ids: Tensor, logprobs: Tensor) -> None:
        """Begin with the root's child: int64 and float32 `[bs, 1]`."""
        self._tokens, self._logprobs = [ids], [logprobs]
        self.frontier_tokens: Tensor = ids

    @property
    def ancestors(self) -> Tensor:
        """See the class."""
        shape = (len(self.frontier_tokens), 1, len(self._tokens))
        return torch.ones(shape, dtype=torch.bool, device=self.frontier_tokens.device)

    def grow(self, ids: Tensor, logprobs: Tensor) -> None:
        """Append the child of the last node: int64 and float32 `[bs, 1, 1]`."""
        self.frontier_tokens = ids[:, 0]
        self._tokens.append(self.frontier_tokens)
        self._logprobs.append(logprobs[:, 0])

    def at_parents(self, outputs: Tensor) -> Tensor:
        """The outputs as they are: the frontier is the last node's child."""
        return outputs

    def build(self, roots: Tensor, cut: Cut | None = None) -> Tensor:
        """The chains, int64 `[bs, 1 + num_steps]`, -1 from the first token on that is no draft.

        Args:
            roots: int64 `[bs]`.
            cut: leaves out their tails; None for none.
        """
        scores = torch.cat(self._logprobs, dim=1).cumsum(dim=1)  # never rises: what is no draft has none behind
        if cut is not None:
            scores = cut(scores)
        tokens = torch.cat(self._tokens, dim=1).where(scores > -torch.inf, -1)
        return torch.cat((roots[:, None], tokens), dim=1)
