"""The second stage: train the head, resumably, and keep a log of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from examples.train_eagle.batches import Batch, Example, batches
from examples.train_eagle.loss import chain_losses
from specgrammar.spec.eagle.head import DraftVocabulary, EagleHead

_NUM_OTHERS = 2048
"""Ids of the draft vocabulary that an update sees beside the batch's own."""


@dataclass(frozen=True)
class Recipe:
    """How a head is trained.

    Attributes:
        num_updates: of the weights, in all.
        num_positions: answer positions in one update.
        depth: tokens that are drafted in training-time test.
        first_depth: of the first updates; see `depth_at`.
        decay: weight of a depth over the one before it.
        learning_rate: after the warm-up; it then falls as a cosine to a hundredth.
        warm_up: updates.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        seed: of the weights and of the order.
    """

    num_updates: int
    num_positions: int = 1536
    depth: int = 4
    first_depth: int = 1
    decay: float = 0.8
    learning_rate: float = 1.5e-3
    warm_up: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0

    def depth_at(self, update: int) -> int:
        """How deep an update drafts: first `first_depth`, from a quarter on more, all of it behind the half."""
        progress = update / self.num_updates
        deeper = math.ceil((progress - 0.25) / 0.42 * (self.depth - 1))
        return min(self.depth, max(self.first_depth, 1 + deeper))

    def rate_at(self, update: int) -> float:
        """The learning rate of an update."""
        if update < self.warm_up:
            return self.learning_rate * (update + 1) / self.warm_up
        progress = (update - self.warm_up) / max(1, self.num_updates - self.warm_up)
        return self.learning_rate * (0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2)


def train(
    head: EagleHead,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    recipe: Recipe,
    folder: Path,
    report: Callable[[str], None],
    save_every: int = 100,
) -> list[dict[str, Any]]:
    """Train a head; goes on from `folder` where a run of this recipe and head stopped.

    The head is in float32 then, and holds more digits than it was trained to compute with.

    Returns:
        The log: per `save_every` updates the losses and the shares of right drafts by depth, of the training
        batches since the last entry and of the held-out answers.
    """
    master = [parameter.detach().float().clone() for parameter in head.parameters()]
    optimizer = torch.optim.AdamW(
        master, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    state_path, log_path = folder / "state.pt", folder / "log.json"
    log: list[dict[str, Any]] = []
    update = 0
    start = float(sum(wide.double().abs().sum() for wide in master))  # tells heads to begin with apart
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        if (state["recipe"], state["start"]) == (asdict(recipe), start):
            master[:] = state["master"]
            optimizer.param_groups[0]["params"] = master
            _take_over(head, master)
            optimizer.load_state_dict(state["optimizer"])
            update, log = state["update"], json.loads(log_path.read_text())
    begin, first = time.monotonic(), update
    recent = _Tally(recipe.depth)
    head.train()
    while update < recipe.num_updates:
        random = Random(f"{recipe.seed} {update}")
        for batch in batches(examples, recipe.num_positions, random):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(update)
            torch.autograd.backward(_loss(head, batch, recipe, recent, random, recipe.depth_at(update)))
            for wide, parameter in zip(master, head.parameters(), strict=True):
                wide.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
            torch.nn.utils.clip_grad_norm_(master, recipe.clip)
            optimizer.step()
            _take_over(head, master)
            update += 1
            if update % save_every == 0 or update == recipe.num_updates:
                seconds = time.monotonic() - begin
                entry = {
                    "update": update,
                    "train": recent.result(),
                    "held_out": evaluate(head, held_out, recipe),
                }
                log.append(entry)
                recent = _Tally(recipe.depth)
                torch.save(
                    {
                        "recipe": asdict(recipe),
                        "start": start,
                        "master": master,
                        "optimizer": optimizer.state_dict(),
                        "update": update,
                    },
                    state_path.with_suffix(".partial"),
                )
                log_path.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
                state_path.with_suffix(".partial").rename(state_path)
                left = (recipe.num_updates - update) * seconds / (update - first)
                report(_line(entry, recipe.num_updates, seconds, left))
            if update == recipe.num_updates:
                break
    _take_over(head.float(), master)
    head.eval()
    return log


@torch.no_grad()
def _take_over(head: EagleHead, master: Sequence[Tensor]) -> None:
    """Copy the weights in float32 into the ones that compute in bfloat16."""
    for wide, parameter in zip(master, head.parameters(), strict=True):
        parameter.copy_(wide)


@torch.no_grad()
def evaluate(head: EagleHead, examples: Sequence[Example], recipe: Recipe) -> dict[str, Any]:
    """Losses and shares of right drafts by depth, over some answers."""
    head.eval()
    tally = _Tally(recipe.depth)
    random = Random(0)
    for batch in batches(examples, recipe.num_positions, random):
        _loss(head, batch, recipe, tally, random, recipe.depth)
    head.train()
    return tally.result()


class _Tally:
    """Sums over batches."""

    def __init__(self, depth: int) -> None:
        self._loss, self._right, self._count = [0.0] * depth, [0] * depth, [0] * depth

    def note(self, depth: int, loss: float, num_right: int, num_positions: int) -> None:
        self._loss[depth] += loss * num_positions
        self._right[depth] += num_right
        self._count[depth] += num_positions

    def result(self) -> dict[str, Any]:
        counts = [max(1, count) for count in self._count]
        return {
            "loss": [round(value / count, 4) for value, count in zip(self._loss, counts, strict=True)],
            "right": [round(value / count, 4) for value, count in zip(self._right, counts, strict=True)],
        }


def _loss(head: EagleHead, batch: Batch, recipe: Recipe, tally: _Tally, random: Random, depth: int) -> Tensor:
    depths = chain_losses(head, batch, training_vocabulary(head, batch, random), depth)
    total = torch.zeros(())
    for i, one in enumerate(depths):
        tally.note(i, float(one.loss.detach()), one.num_right, one.num_positions)
        total = total + recipe.decay**i * one.loss
    return total


def training_vocabulary(head: EagleHead, batch: Batch, random: Random) -> DraftVocabulary:
    """The batch's own tokens and a random part of the draft vocabulary: all of it costs more than the layer."""
    own = torch.cat([tokens.flatten() for tokens in (batch.context_tokens, batch.tokens, batch.top_ids)])
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    some = head.draft_ids[torch.randperm(len(head.draft_ids), generator=generator)[:_NUM_OTHERS]]
    return head.rows_of(torch.unique(torch.cat((own, some))))


def _line(entry: dict[str, Any], num_updates: int, seconds: float, left: float) -> str:
    right = " ".join(f"{value:.3f}" for value in entry["held_out"]["right"])
    return (
        f"update {entry['update']}/{num_updates}  loss {entry['train']['loss'][0]:.3f} (held out "
        f"{entry['held_out']['loss'][0]:.3f})  held-out drafts right by depth {right}  {seconds:.0f} s, "
        f"{left:.0f} s left"
    )
