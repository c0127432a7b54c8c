"""`EagleProducer`: a step's trees, grown by a head behind what the target has just computed.

    take in      what was committed since the last draft, with the target's features of it
    grow         the root's best children, then level by level the best of theirs
    build        the best nodes, as far as they pay, as the tree that is verified

All of it is one piece of launched work that reads what the step before leaves on the stream, so that the host
neither waits for it nor for that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specgrammar.checks import refused
from specgrammar.protocols.spec import Commit, DecodeBatch, Needs, ProducerContext, RequestView
from specgrammar.protocols.target import SupportsFeatures
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.eagle.budget import BranchBudget, Cut
from specgrammar.spec.eagle.chain_growth import ChainGrowth, is_chain
from specgrammar.spec.eagle.growth import Growth
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.spec.eagle.legal import LegalTokens
from specgrammar.spec.eagle.state import HeadState
from specgrammar.spec.eagle.words import DraftWords
from specgrammar.spec.roots import last_tokens, roots_tree
from specgrammar.trees.tree import DeviceTree, DraftTree


@dataclass
class _Drafted:
    """A request that is drafted for.

    Attributes:
        row: of the head's cache, and of the outputs.
        is_new: nothing was drafted for it yet.
        is_lost: the head has not seen all of its tokens, since work failed; it gets no drafts any more.
    """

    row: int
    is_new: bool = True
    is_lost: bool = False


class EagleProducer:
    """Grows a tree per request, and a chain where one node is expanded at a depth."""

    def __init__(
        self, options: EagleAlgorithm, head: EagleHead, target: SupportsFeatures, context: ProducerContext
    ) -> None:
        """Take over a head beside its target, whose features nobody else may take.

        Raises:
            ConfigError: the head drafts fewer tokens than `topk`.
        """
        self.needs: Needs = "grammar" if options.grammar_aware else "nothing"
        self._options, self._target, self._device = options, target, context.device
        chains = is_chain(options.topk, options.num_steps, options.num_draft_tokens)
        self._growth: type[Growth | ChainGrowth] = ChainGrowth if chains else Growth
        num_expanded = options.topk * (options.num_steps - 1)
        self._state = HeadState(head, context.max_batch_size, num_expanded)
        like = head.layer(0).self_attn.q_proj.weight
        self._outputs = like.new_zeros(context.max_batch_size, head.config.hidden_size)  # behind each last root
        self._words = DraftWords(head, context.vocabulary.vocab_size)
        if options.topk > self._words.num_common:
            raise refused(
                "eagle: topk", options.topk, f"at most {self._words.num_common}, what the head drafts"
            )
        self._vocabulary = context.vocabulary
        self._budget: BranchBudget | None = None
        if options.budget == "auto":
            self._budget = BranchBudget(options.num_draft_tokens - 1, context.device, context.agree)
        self._requests: dict[str, _Drafted] = {}
        self._free_rows = list(reversed(range(context.max_batch_size)))

    def propose(self, batch: DecodeBatch) -> DraftTree:
        """Launch the growth of a tree per request, see `TreeProducer`; all have the same capacity."""
        options, bs = self._options, len(batch)
        cut = self._cut(batch)
        if not any(view.max_draft_tokens for view in batch.requests):
            return roots_tree(batch, self._device)
        for view in batch.requests:
            if view.request_id not in self._requests:
                self._requests[view.request_id] = _Drafted(self._free_rows.pop())
        drafted = [self._requests[view.request_id] for view in batch.requests]
        cu_nodes = np.arange(bs + 1, dtype=np.int64) * options.num_draft_tokens
        shape = (1 if options.topk == 1 else 3, bs * options.num_draft_tokens)
        memory = torch.empty(shape, dtype=torch.int64, device=self._outputs.device)
        made = self._device.launch(lambda: self._draft(batch, drafted, memory, cut), "draft")
        if self._budget is not None:
            self._budget.launched()
        tokens, *links = memory.unbind(0)
        parts = DeviceTree(tokens, *links)
        source = np.zeros(len(tokens), dtype=np.int16)
        return DraftTree(batch.step, cu_nodes, device=parts, made=made, source=source, sources=("eagle",))

    def observe(self, commits: Sequence[Commit]) -> None:
        """Give the rows of finished requests to others, and learn what was accepted."""
        if self._budget is not None:
            self._budget.observe(commits)
        for commit in commits:
            if commit.finished and (drafted := self._requests.pop(commit.request_id, None)) is not None:
                self._free_rows.append(drafted.row)

    def _cut(self, batch: DecodeBatch) -> Cut | None:
        """What this step leaves out; None for nothing."""
        if self._budget is not None:
            return self._budget.begin([view.request_id for view in batch.requests])
        number = self._options.budget
        return Cut(most=number * len(batch)) if isinstance(number, int) else None

    # -- on the stream -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _draft(self, batch: DecodeBatch, drafted: Sequence[_Drafted], memory: Tensor, cut: Cut | None) -> None:
        rows = [one.row for one in drafted]
        roots = self._take_in(batch, drafted)
        limits = torch.tensor(
            [0 if one.is_lost else v.max_draft_tokens for one, v in zip(drafted, batch.requests, strict=True)],
            device=roots.device,
        )
        growth = self._grow(batch, rows, roots, limits)
        built = memory.view(len(memory), len(batch), -1)
        if isinstance(growth, ChainGrowth):
            built[0] = growth.build(roots, cut)
            return
        trees = growth.build(roots, self._options.num_draft_tokens, cut)
        built[0] = trees.tokens
        if len(built) > 1:  # else they are chains, whose links are known
            built[1], built[2] = trees.next_token, trees.next_sibling

    def _take_in(self, batch: DecodeBatch, drafted: Sequence[_Drafted]) -> Tensor:
        """Let the head read what was committed; the roots, int64 `[bs]`."""
        device = self._outputs.device
        committed = None if batch.unresolved is None else batch.unresolved.value()
        tails: list[list[int]] = [[]] * len(batch)
        if committed is not None:
            found = zip(committed.tokens.tolist(), committed.num_tokens.tolist(), strict=True)
            tails = [row[:count] for row, count in found]
        rows, tokens, features, counts = [], [], [], []
        for view, one, tail in zip(batch.requests, drafted, tails, strict=True):
            if one.is_new:
                self._begin(view, one)
            begin, known = self._state.length(one.row) + 1, view.num_tokens
            # What the head has read of the step in flight, for a step that failed since, is not read again.
            news = [*view.tokens[begin:known], *tail[max(0, begin - known) :]]
            seen = self._target.take_features(view.request_id)
            one.is_lost = one.is_lost or len(seen) != len(news)
            if news and not one.is_lost:
                rows.append(one.row)
                tokens += news
                features.append(seen)
                counts.append(len(news))
        self._state.drop_drafts()
        if rows:
            ids = torch.tensor(tokens, dtype=torch.int64, device=device)
            self._outputs[rows] = self._state.extend(rows, ids, torch.cat(features), counts)
        return last_tokens(batch, committed, device)

    def _begin(self, view: RequestView, one: _Drafted) -> None:
        self._state.clear(one.row)
        self._outputs[one.row] = 0
        self._words.put(one.row, view.tokens[: view.num_prompt_tokens])
        one.is_new = False

    def _grow(self, batch: DecodeBatch, rows: list[int], roots: Tensor, limits: Tensor) -> Growth | ChainGrowth:
        k, output = self._options.topk, self._outputs[rows]
        legal = None
        if self._options.grammar_aware:
            legal = LegalTokens(self._vocabulary, self._device, batch, roots)
        ids, logprobs = self._words.best(
            rows, output[:, None], k, None if legal is None else legal.behind_root()
        )
        logprobs = logprobs.masked_fill((limits < 1)[:, None, None], -torch.inf)
        growth = self._growth(ids[:, 0], logprobs[:, 0])
        hidden = output[:, None].expand(-1, k, -1)
        for depth in range(1, self._options.num_steps):
            tokens = growth.frontier_tokens
            hidden = self._state.expand(rows, tokens, hidden, growth.ancestors)
            allowed = None if legal is None else legal.behind(growth)
            ids, logprobs = self._words.best(rows, hidden, k, allowed)
            growth.grow(ids, logprobs.masked_fill((limits <= depth)[:, None, None], -torch.inf))
            hidden = growth.at_parents(hidden)
        return growth
