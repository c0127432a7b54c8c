"""The stages of making a head: answers, training, export. Each goes on where an earlier run stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.picture import load_pyplot
from examples.train_eagle.answers import MAX_TOKENS, answer_all, load_tasks, open_session, save_answers
from examples.train_eagle.batches import Example, load_examples
from examples.train_eagle.prompts import Split, tasks
from examples.train_eagle.target import SlotTarget
from examples.train_eagle.train import Recipe, train
from examples.train_eagle.workshop import DRAFT_VOCABULARY, FEATURE_LAYERS, Workshop, frequent_ids
from specgrammar.spec.eagle.checkpoint import save_head
from specgrammar.spec.eagle.head import EagleHead

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        num_answers: of training prompts.
        num_held_out: answers of validation prompts.
        shard: answers in one file.
        num_slots: answers that are generated at a time.
        longest: most tokens of an answer; see `answers.MAX_TOKENS` too.
        seed: of the prompts, and of sampled answers.
        recipe: of the training.
        begin: folder of a head to begin with; None for a new one.
    """

    num_answers: int
    num_held_out: int
    shard: int
    num_slots: int
    longest: int
    seed: int
    recipe: Recipe
    begin: Path | None = None


def make_answers(workshop: Workshop, plan: Plan, split: Split, report: Report) -> list[Path]:
    """Answer as many prompts of a split as the plan says; returns the shards, those of earlier runs first."""
    folder = workshop.folder / "answers"
    folder.mkdir(exist_ok=True)
    paths = sorted(folder.glob(f"{split}-*.safetensors"))
    seen = {task.prompt for path in paths for task in load_tasks(path)}
    wanted = (plan.num_answers if split == "train" else plan.num_held_out) - len(seen)
    if wanted <= 0:
        report(f"{split}: {len(seen)} answers are there")
        return paths
    encode, vocabulary, backend = workshop.adapter.encode_prompt, workshop.adapter.vocabulary, workshop.backend
    target = SlotTarget(workshop.load_model("bfloat16"), plan.num_slots, 512, FEATURE_LAYERS)
    answers = answer_all(
        target,
        plan.num_slots,
        lambda task: open_session(vocabulary, backend, task, min(plan.longest, MAX_TOKENS[task.kind])),
        encode,
        islice((task for task in tasks(split, plan.seed) if task.prompt not in seen), wanted),
        seed=len(paths),
    )
    num_done, num_tokens, begin = 0, 0, time.monotonic()
    while shard := list(islice(answers, plan.shard)):
        path = folder / f"{split}-{len(paths):04}.safetensors"
        save_answers(path, shard)
        paths.append(path)
        num_done += len(shard)
        num_tokens += sum(len(answer.tokens) for answer in shard)
        seconds = time.monotonic() - begin
        left = seconds / num_done * (wanted - num_done)
        report(
            f"{split}: {len(seen) + num_done} answers, {num_tokens / seconds:.0f} tokens/s, {seconds:.0f} s, "
            f"{left:.0f} s left"
        )
    return paths


def train_head(
    workshop: Workshop, plan: Plan, train_paths: Sequence[Path], held_out: Sequence[Path], report: Report
) -> tuple[EagleHead, list[dict[str, Any]]]:
    """Train a head on shards of answers; returns it in float32, with the log."""
    columns = range(len(FEATURE_LAYERS))
    norm_eps = workshop.head_config.norm_eps
    examples = load_examples(train_paths, columns, norm_eps)
    aside = load_examples(held_out, columns, norm_eps)
    report(f"training on {len(examples)} answers of {sum(e.answer_length for e in examples)} tokens")
    head = workshop.new_head(draft_ids(examples, workshop), plan.recipe.seed)
    if plan.begin is not None:
        head.load_state_dict(workshop.load_head(plan.begin).state_dict())
    log = train(head.bfloat16(), examples, aside, plan.recipe, workshop.folder, report)
    return head, log


def draft_ids(examples: Sequence[Example], workshop: Workshop) -> Any:
    """The draft vocabulary: what is frequent in the training answers."""
    return frequent_ids(examples, workshop.head_config.vocab_size, DRAFT_VOCABULARY)


def export(head: EagleHead, log: list[dict[str, Any]], folder: Path) -> None:
    """Write the head in float16, and the picture of its training."""
    save_head(folder, head)
    pyplot = load_pyplot()
    if pyplot is None:
        return
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    updates = [entry["update"] for entry in log]
    for depth in range(len(log[0]["train"]["loss"])):
        for name, style in (("train", "--"), ("held_out", "-")):
            color = f"C{depth}"
            label = f"depth {depth + 1}, {name.replace('_', ' ')}"
            # A depth that was not trained yet has no loss.
            losses = [entry[name]["loss"][depth] or math.nan for entry in log]
            shares = [entry[name]["right"][depth] for entry in log]
            left.plot(updates, losses, style, color=color, label=label)
            right.plot(updates, shares, style, color=color)
    left.set(xlabel="update", ylabel="cross entropy with the target", yscale="log")
    right.set(xlabel="update", ylabel="share of drafts that are the target's choice", ylim=(0, 1))
    left.legend(fontsize="x-small")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(folder / "loss.png", dpi=120)
    pyplot.close(figure)
