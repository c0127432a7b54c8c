"""`HeadState`: a draft head's keys and values for many requests, and the two moves of drafting.

`extend` takes in what was committed, with the target's features; `expand` runs one level of a draft tree.
What a draft leaves in the cache lies behind the committed part, and the next `extend` writes over it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from specgrammar.errors import ConfigError
from specgrammar.spec.eagle.head import EagleHead


class HeadState:
    """One row of the cache for each request; the caller says which request has which row.

    A head of several steps keeps a cache per layer. The layer of step s reads at position i the output of the
    layer in front of it at position i-1, so that all have entries for the same positions and tokens; the
    first s entries have no such output, and nobody reads them.
    """

    def __init__(self, head: EagleHead, num_rows: int, max_nodes: int, num_positions: int = 256) -> None:
        """Reserve the cache.

        Args:
            head: drafts.
            num_rows: requests at a time.
            max_nodes: most nodes that are expanded for one request in one step; 0 drafts one token only.
            num_positions: positions to begin with; it grows when more are needed.
        """
        self._head = head
        self._max_nodes = max_nodes
        self._lengths = [0] * num_rows
        config, like = head.config, head.layer(0).self_attn.q_proj.weight
        self._keys, self._values = (
            [
                like.new_zeros(num_rows, config.num_kv_heads, num_positions + max_nodes, config.head_dim)
                for _ in head.layers
            ]
            for _ in range(2)
        )
        # The last output of each layer but the last: what the next layer reads at the next position.
        self._carried = like.new_zeros(len(head.layers), num_rows, config.hidden_size)
        self._levels: list[int] = []  # of the nodes that were expanded since `extend`

    def length(self, row: int) -> int:
        """Positions of a row that are committed."""
        return self._lengths[row]

    def clear(self, row: int) -> None:
        """Empty a row for another request; zeroed, since a NaN that is masked is a NaN all the same."""
        self._lengths[row] = 0
        self._carried[:, row].zero_()
        for cache in (*self._keys, *self._values):
            cache[row].zero_()

    @torch.no_grad()
    def extend(self, rows: Sequence[int], tokens: Tensor, features: Tensor, counts: Sequence[int]) -> Tensor:
        """Take in committed tokens, and drop what was drafted since the last call.

        After the call, a row's committed positions are as many as there are tokens in front of the request's
        root.

        Args:
            rows: of each request, no row twice.
            tokens: int64 `[sum(counts)]`, request by request: for each new position the token behind it, so
                that the last one of a request is its root.
            features: `[sum(counts), feature_size]`, the target's at the new positions.
            counts: new positions of each request, at least 1.

        Returns:
            The output at the last position of each request, `[len(rows), hidden_size]`: its logits draft the
            first token, and it is what the first level of `expand` reads.

        Raises:
            ConfigError: the sizes do not fit each other.
        """
        if len(tokens) != sum(counts) or len(features) != sum(counts) or min(counts, default=1) < 1:
            raise ConfigError(
                f"extend: {len(tokens)} tokens and {len(features)} features for {sum(counts)} new positions of "
                f"{len(counts)} requests, each with at least 1; give one of each per position"
            )
        device, size = tokens.device, max(counts)
        offsets = torch.arange(size, device=device)
        num_new = torch.tensor(counts, device=device)
        starts = torch.tensor([self._lengths[row] for row in rows], device=device)
        # Right padding: its keys lie behind the committed part, where nobody looks.
        source = (num_new.cumsum(0) - num_new)[:, None] + offsets.minimum(num_new[:, None] - 1)
        positions = starts[:, None] + offsets
        hidden = self._head.fuse(features.to(self._keys[0].dtype))[source]
        self._reserve(max(self._lengths[row] + size for row in rows))
        index = torch.tensor(list(rows), device=device)
        length = max(self._lengths[row] for row in rows) + size
        visible = torch.arange(length, device=device) <= positions[:, :, None]
        last = (torch.arange(len(rows), device=device), num_new - 1)
        first_output: Tensor | None = None
        for step in range(len(self._head.layers)):
            mask = self._additive(visible & (torch.arange(length, device=device) >= step))
            output = self._run(step, index, tokens[source], hidden, positions, positions, mask)
            first_output = output[last] if first_output is None else first_output
            hidden = torch.cat((self._carried[step, index][:, None], output[:, :-1]), dim=1)
            self._carried[step, index] = output[last]
        for row, count in zip(rows, counts, strict=True):
            self._lengths[row] += count
        self._levels = []
        assert first_output is not None
        return first_output

    def drop_drafts(self) -> None:
        """Drop what was drafted since the last `extend`, to draft again from there."""
        self._levels = []

    @torch.no_grad()
    def expand(self, rows: Sequence[int], tokens: Tensor, hidden: Tensor, ancestors: Tensor) -> Tensor:
        """Run one level of the draft trees: nodes of one depth, below nodes that were expanded before.

        The first call after `extend` is for children of the root, the next for their children, and so on;
        each call is for the same rows. A chain is a level of one node.

        Args:
            rows: as in `extend`.
            tokens: int64 `[b, q]`, the nodes' tokens.
            hidden: `[b, q, hidden_size]`, the outputs at their parents: those of `extend` at first.
            ancestors: bool `[b, q, m + q]` over the m nodes expanded since `extend` and the q of this call, in
                order: which of them lie on a node's path, itself included.

        Returns:
            The outputs, `[b, q, hidden_size]`: their logits draft the children.

        Raises:
            ConfigError: there are more nodes than were reserved, or `ancestors` has another shape.
        """
        num_before, num_nodes = len(self._levels), tokens.shape[1]
        if num_before + num_nodes > self._max_nodes:
            raise ConfigError(
                f"expand: {num_before + num_nodes} nodes for one request, reserved are {self._max_nodes}; "
                "raise max_nodes"
            )
        if ancestors.shape != (*tokens.shape, num_before + num_nodes):
            raise ConfigError(
                f"expand: ancestors have shape {list(ancestors.shape)}, expected "
                f"{[*tokens.shape, num_before + num_nodes]}: a column for each node since extend"
            )
        level = self._levels[-1] + 1 if self._levels else 0
        self._levels += [level] * num_nodes
        step, device = level + 1, tokens.device
        starts = torch.tensor([self._lengths[row] for row in rows], device=device)
        length = max(self._lengths[row] for row in rows) + len(self._levels)
        columns = torch.arange(length, device=device)
        # A node is kept by the layer of its level alone, and so is seen by that layer's nodes alone.
        last = len(self._head.layers) - 1
        is_kept = torch.tensor(
            [min(other + 1, last) == min(step, last) for other in self._levels], device=device
        )
        nodes = columns - starts[:, None]
        on_path = (ancestors & is_kept).gather(
            2, nodes.clamp(0, len(self._levels) - 1)[:, None].expand(-1, num_nodes, -1)
        )
        is_node = (nodes >= 0) & (nodes < len(self._levels))
        is_committed = (nodes < 0) & (columns >= min(step, last))
        mask = self._additive(is_committed[:, None] | (is_node[:, None] & on_path))
        index = torch.tensor(list(rows), device=device)
        slots = starts[:, None] + num_before + torch.arange(num_nodes, device=device)
        positions = (starts[:, None] + level).expand(-1, num_nodes)
        return self._run(step, index, tokens, hidden, positions, slots, mask)

    def _run(
        self,
        step: int,
        rows: Tensor,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """One layer over new positions, which are kept in `slots`; reads as far as the mask is wide."""
        layer = min(step, len(self._head.layers) - 1)
        keys, values = self._keys[layer], self._values[layer]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys[rows[:, None], :, slots] = k.transpose(1, 2)
            values[rows[:, None], :, slots] = v.transpose(1, 2)
            width = mask.shape[-1]
            seen_keys, seen_values = keys[rows, :, :width], values[rows, :, :width]
            return F.scaled_dot_product_attention(
                q, seen_keys, seen_values, attn_mask=mask[:, None], enable_gqa=True
            )

        return self._head.step(step, tokens, hidden, positions, attend)

    def _additive(self, visible: Tensor) -> Tensor:
        """0 where a column is seen, minus infinity elsewhere; a query that sees nothing sees all: no NaN."""
        mask = torch.zeros(visible.shape, dtype=self._keys[0].dtype, device=visible.device)
        return mask.masked_fill_(~(visible | ~visible.any(-1, keepdim=True)), float("-inf"))

    def _reserve(self, num_positions: int) -> None:
        """Grow the caches to twice what is needed, if it is more than they hold."""
        if num_positions + self._max_nodes <= self._keys[0].shape[2]:
            return
        for caches in (self._keys, self._values):
            for layer, cache in enumerate(caches):
                grown = cache.new_zeros(*cache.shape[:2], 2 * num_positions + self._max_nodes, cache.shape[3])
                grown[:, :, : cache.shape[2]] = cache
                caches[layer] = grown
