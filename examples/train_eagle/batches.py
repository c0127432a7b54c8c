"""Stored answers as batches of similar lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from examples.train_eagle.answers import load_tasks
from examples.train_eagle.prompts import Task


@dataclass(frozen=True)
class Example:
    """One answered prompt; see `answers` for what is kept of it."""

    task: Task
    prompt_length: int
    tokens: Tensor
    features: Tensor
    top_ids: Tensor
    top_probs: Tensor

    @property
    def answer_length(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.prompt_length


@dataclass(frozen=True)
class Batch:
    """Positions of the head, those of the prompts (context) and those that are learnt from (answers) apart.

    The position of a token's feature is that token's. Context: up to the third last token of the prompt, `[b,
    c]`, padded on the left, so that the answers' positions follow on. Answers: `[b, a]`, padded on the right.

    Attributes:
        context_tokens: int64; the token behind each position.
        context_features: `[b, c, num_features * hidden]`.
        context_lengths: int64 `[b]`, without padding.
        tokens: int64; the token behind each position.
        features: `[b, a, num_features * hidden]`.
        lengths: int64 `[b]`, without padding.
        top_ids: int64 `[b, a, top]`: the target's choices for the token that each position predicts.
        top_probs: their probabilities; all 0 in the padding.
    """

    context_tokens: Tensor
    context_features: Tensor
    context_lengths: Tensor
    tokens: Tensor
    features: Tensor
    lengths: Tensor
    top_ids: Tensor
    top_probs: Tensor


def load_examples(paths: Sequence[Path], layers: Sequence[int], norm_eps: float | None) -> list[Example]:
    """All answers of some shards, with the features of the given columns.

    With `norm_eps` each feature is normed, once, here; a head then reads them without its own norms.
    """
    examples: list[Example] = []
    for path in paths:
        stored, tasks = load_file(path), load_tasks(path)
        features = stored["features"]
        if list(layers) != list(range(features.shape[1])):
            features = features[:, list(layers)]
        if norm_eps is not None:
            features = F.rms_norm(features.float(), features.shape[-1:], eps=norm_eps).bfloat16()
        features = features.flatten(1)
        token, row, top = 0, 0, 0
        lengths = zip(tasks, stored["prompt_lengths"].tolist(), stored["answer_lengths"].tolist(), strict=True)
        for task, num_prompt, num_answer in lengths:
            size = num_prompt + num_answer
            examples.append(
                Example(
                    task,
                    num_prompt,
                    stored["tokens"][token : token + size].long(),
                    features[row : row + size - 1],
                    stored["top_ids"][top : top + num_answer].long(),
                    stored["top_probs"][top : top + num_answer],
                )
            )
            token, row, top = token + size, row + size - 1, top + num_answer
    return examples


def batches(examples: Sequence[Example], num_positions: int, random: Random) -> Iterator[Batch]:
    """One epoch: batches of about `num_positions` answer positions, in random order."""
    order = sorted(
        examples,
        key=lambda e: ((e.answer_length + random.randrange(8)) // 8, e.prompt_length + random.uniform(0, 20)),
    )
    groups: list[list[Example]] = [[]]
    for example in order:
        if groups[-1] and sum(e.answer_length for e in groups[-1]) >= num_positions:
            groups.append([])
        groups[-1].append(example)
    random.shuffle(groups)
    for group in groups:
        yield collate(group)


def collate(examples: Sequence[Example]) -> Batch:
    """Pad."""
    contexts = [e.prompt_length - 2 for e in examples]
    answers = [e.answer_length for e in examples]
    b, c, a = len(examples), max(contexts), max(answers)
    like, top = examples[0].features, examples[0].top_ids.shape[1]
    batch = Batch(
        torch.zeros(b, c, dtype=torch.int64),
        like.new_zeros(b, c, like.shape[1]),
        torch.tensor(contexts),
        torch.zeros(b, a, dtype=torch.int64),
        like.new_zeros(b, a, like.shape[1]),
        torch.tensor(answers),
        torch.zeros(b, a, top, dtype=torch.int64),
        torch.zeros(b, a, top),
    )
    for i, (e, start, length) in enumerate(zip(examples, contexts, answers, strict=True)):
        batch.context_tokens[i, c - start :] = e.tokens[1 : start + 1]
        batch.context_features[i, c - start :] = e.features[:start]
        batch.tokens[i, :length] = e.tokens[start + 1 : start + 1 + length]
        batch.features[i, :length] = e.features[start : start + length]
        batch.top_ids[i, :length] = e.top_ids
        batch.top_probs[i, :length] = e.top_probs
    return batch
