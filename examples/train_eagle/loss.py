"""Training-time test: the head learns on its own outputs, several steps deep, as it will draft.

Step 1 reads the target's features at every position. Step s reads at position i the output of step s-1 at
i-1, and attends as a draft of depth s does: to the target's features up to its root, s-1 positions back, and
to the steps of its own chain in between. So all chains of a text are run at once, and one forward trains
every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.train_eagle.batches import Batch
from specgrammar.spec.eagle.head import DraftVocabulary, EagleHead


@dataclass(frozen=True)
class DepthLoss:
    """One depth of drafting.

    Attributes:
        loss: cross entropy with the target's distribution, mean over positions.
        num_right: positions where the best draft is the target's best token.
        num_positions: positions that were scored.
    """

    loss: Tensor
    num_right: int
    num_positions: int


def chain_losses(head: EagleHead, batch: Batch, vocabulary: DraftVocabulary, num_steps: int) -> list[DepthLoss]:
    """The losses of drafts 1 to `num_steps` tokens deep, from every position of the answers.

    The vocabulary must hold all of the batch's `top_ids`.
    """
    num_context, num_answer = batch.context_tokens.shape[1], batch.tokens.shape[1]
    steps = torch.arange(num_answer)
    positions = batch.context_lengths[:, None] + steps
    context_columns = torch.arange(num_context)
    is_context = context_columns >= num_context - batch.context_lengths[:, None]
    context_positions = (context_columns - num_context + batch.context_lengths[:, None]).clamp(min=0)
    past = _context(head, batch, context_positions)
    chain: list[tuple[Tensor, Tensor]] = []
    hidden = head.fc(batch.features)
    places = torch.searchsorted(vocabulary.ids, batch.top_ids)
    losses = []
    for step in range(num_steps):
        # The context, and the texts up to the chain's root, which is `step` positions back.
        is_past = steps[:, None] - steps >= step
        seen = torch.cat(
            (is_context[:, None].expand(-1, num_answer, -1), is_past.expand(len(batch.tokens), -1, -1)), 2
        )

        def attend(q: Tensor, k: Tensor, v: Tensor, step: int = step, seen: Tensor = seen) -> Tensor:
            nonlocal past
            if step == 0:
                past = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            else:
                chain.append((k, v))
            # Step m of a chain is as many positions back as there are steps behind it.
            own = [(k.roll(back, 2), v.roll(back, 2)) for back, (k, v) in enumerate(reversed(chain))]
            return _read(q, *past, seen, own)

        output = head.step(step, batch.tokens, hidden, positions, attend)
        is_scored = (steps >= step) & (steps < batch.lengths[:, None])
        losses.append(
            _depth_loss(head, output[is_scored], places[is_scored], batch.top_probs[is_scored], vocabulary)
        )
        hidden = output.roll(1, 1)
    return losses


def _read(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over a part that is seen or not, `[b, q, k]`, and over one more position of a query's own each.

    On a CPU the backward of this costs half of that of one masked attention over everything.
    """
    b, num_kv_heads, _, size = k.shape
    # The queries of one key head are its rows, so keys need not be repeated.
    grouped = torch.unflatten(q * size**-0.5, 1, (num_kv_heads, -1))
    scores = (grouped.flatten(2, 3) @ k.transpose(2, 3)).view(b, num_kv_heads, -1, *seen.shape[1:])
    scores = scores.masked_fill(~seen[:, None, None], torch.finfo(scores.dtype).min)
    single = [(grouped * keys[:, :, None]).sum(-1, keepdim=True) for keys, _ in own]
    weights = torch.cat((scores, *single), -1).float().softmax(-1).to(q.dtype)
    read = weights[..., : scores.shape[-1]].flatten(2, 3) @ v
    read = torch.unflatten(read, 2, (-1, q.shape[2]))
    for i, (_, values) in enumerate(own):
        column = scores.shape[-1] + i
        read = read + weights[..., column : column + 1] * values[:, :, None]
    return read.flatten(1, 2)


def _context(head: EagleHead, batch: Batch, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of the prompts; nothing else of them is needed."""
    cos, sin = head.angles(positions, batch.features.dtype)
    hidden = head.fc(batch.context_features)
    x, _ = head.layer(0).read(head.embed(batch.context_tokens), hidden)
    return head.layer(0).self_attn.keys_and_values(x, cos, sin)


def _depth_loss(
    head: EagleHead, output: Tensor, places: Tensor, probs: Tensor, vocabulary: DraftVocabulary
) -> DepthLoss:
    cross_entropy: Callable[..., tuple[Tensor, Tensor]] = _SoftCrossEntropy.apply
    loss, is_right = cross_entropy(head.norm(output), vocabulary.rows, places, probs)
    return DepthLoss(loss, int(is_right.sum()), len(places))


class _SoftCrossEntropy(torch.autograd.Function):
    """Cross entropy with sparse targets behind a frozen output head.

    The gradient is made in the forward, in the memory of the logits: they are large, and each pass over them
    counts.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, rows: Tensor, places: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(output, rows).float()
        top = logits.amax(-1, keepdim=True)
        picked = logits.gather(1, places)
        total = logits.sub_(top).exp_().sum(-1, keepdim=True)
        loss = (probs * (total.log() + top - picked)).sum(-1).mean()
        logits.mul_(probs.sum(-1, keepdim=True) / total).scatter_add_(1, places, -probs)
        ctx.save_for_backward(logits.to(rows.dtype) @ rows)
        ctx.num_rows = len(output)
        is_right = picked[:, 0] >= top[:, 0]
        ctx.mark_non_differentiable(is_right)
        return loss, is_right

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * (gradients[0] / ctx.num_rows).to(gradient.dtype), None, None, None
