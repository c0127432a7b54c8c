"""Growing draft trees level by level, and cutting them to what is verified (EAGLE-2, arXiv 2406.16858).

Each expanded node gets its `topk` best children; of all children of a level the `topk` best by cumulative
log-probability are expanded next. In the end the best nodes of all levels are kept, in the order in which
they were found, so that parents come before children. A node's score is never above its parent's, and of equal
scores the earlier node is taken, so what is kept is a tree.

All shapes are known beforehand and nothing waits for the device. A score of -inf marks a node that is no draft
(an illegal token, or deeper than its request needs): it may be grown from, and comes out as padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specgrammar.spec.eagle.budget import Cut
from specgrammar.spec.eagle.build import BuiltTrees, best, build_trees


class Growth:
    """The draft trees of a batch while they grow.

    Attributes:
        frontier: the nodes to expand next, int64 `[bs, topk]`: numbers of candidates.
        above: the place of each one's parent in the frontier before, int64 `[bs, topk]`.
        ancestors: which of the nodes that were in a frontier lie on each one's path, bool `[bs, topk, seen]`,
            in the order in which they were expanded, those of this frontier last.
    """

    def __init__(self, ids: Tensor, logprobs: Tensor) -> None:
        """Begin with the root's children.

        Args:
            ids: int64 `[bs, topk]`, the best tokens behind each root.
            logprobs: float32 `[bs, topk]`, -inf for one that is no draft.
        """
        bs, topk = ids.shape
        self.topk: int = topk
        self._own = torch.eye(self.topk, dtype=torch.bool, device=ids.device).expand(bs, -1, -1)
        self.frontier: Tensor = torch.arange(self.topk, device=ids.device).expand(bs, -1)
        self.above: Tensor = torch.zeros_like(self.frontier)
        self.ancestors: Tensor = self._own
        self._tokens = [ids]
        self._parents = [torch.full_like(ids, -1)]
        self._scores = [logprobs]
        self._frontier_scores = logprobs

    @property
    def frontier_tokens(self) -> Tensor:
        """The frontier's tokens, int64 `[bs, topk]`."""
        return torch.cat(self._tokens, dim=1).gather(1, self.frontier)

    def grow(self, ids: Tensor, logprobs: Tensor) -> None:
        """Give each node of the frontier its children, and choose the next frontier.

        Args:
            ids: int64 `[bs, topk, topk]`, the best tokens behind each node.
            logprobs: float32 `[bs, topk, topk]`, given their parents.
        """
        k = self.topk
        begin = sum(part.shape[1] for part in self._tokens)
        scores = (self._frontier_scores[:, :, None] + logprobs).flatten(1)
        self._tokens.append(ids.flatten(1))
        self._parents.append(self.frontier.repeat_interleave(k, dim=1))
        self._scores.append(scores)
        chosen = best(scores, k)
        self._frontier_scores = scores.gather(1, chosen)
        self.frontier, self.above = begin + chosen, chosen // k
        seen = self.ancestors.shape[2]
        inherited = self.ancestors.gather(1, self.above[:, :, None].expand(-1, -1, seen))
        self.ancestors = torch.cat((inherited, self._own), dim=2)

    def at_parents(self, outputs: Tensor) -> Tensor:
        """What the frontier's nodes are expanded with: of outputs `[bs, topk, size]`, their parents'."""
        return outputs.gather(1, self.above[:, :, None].expand(-1, -1, outputs.shape[2]))

    def build(self, roots: Tensor, num_nodes: int, cut: Cut | None = None) -> BuiltTrees:
        """Keep each root and its best `num_nodes - 1` nodes.

        Args:
            roots: int64 `[bs]`.
            num_nodes: N; places that no node fills are padding.
            cut: leaves out some of these nodes; None for none.
        """
        tokens, parents, scores = self.candidates()
        if cut is not None:
            # Asked about what a tree has room for alone, so that none of a batch's budget is given in vain.
            kept = best(scores, num_nodes - 1)
            scores = torch.full_like(scores, -torch.inf).scatter(1, kept, cut(scores.gather(1, kept)))
        return build_trees(roots, tokens, parents, scores, num_nodes)

    def candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        """All nodes so far, in the order in which they were found: what `build_trees` takes, `[bs, C]` each."""
        return torch.cat(self._tokens, 1), torch.cat(self._parents, 1), torch.cat(self._scores, 1)
