"""The first stage: the target answers the prompts, under their schemas, and what a head learns from is kept.

Answers are kept in shards. A shard holds, joined over its answers: `tokens` (prompt and answer), `features` of
all tokens but the last, and per answer token the `top_ids` and `top_probs` of the target's distribution behind
the grammar's mask, which is the law that drafts are judged by.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from examples.train_eagle.prompts import Task
from examples.train_eagle.target import SlotTarget
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec, Vocabulary
from specgrammar.trees.tree import HostTree

SHARD = 512
TOP = 16
MAX_TOKENS = {"function": 160, "json": 192, "chat": 112}
_REFILL = 12
"""Free slots at which waiting prompts are taken in: one forward over as many prompts."""


@dataclass
class Answer:
    """One prompt and what the target made of it.

    Attributes:
        task: what was asked.
        prompt: its token ids.
        tokens: the answer's.
        features: of prompt and answer but the last token, `[n, num_features, hidden]`.
        top_ids: int32 `[num answer tokens, TOP]`.
        top_probs: float32, the same shape; behind the grammar's mask.
    """

    task: Task
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    top_ids: list[Tensor] = field(default_factory=list)
    top_probs: list[Tensor] = field(default_factory=list)


def open_session(
    vocabulary: Vocabulary, backend: GrammarBackend, task: Task, max_tokens: int
) -> GrammarSession:
    """The grammar and the stop rules of a task, as the engine would have them."""
    matcher = None
    if task.schema is not None:
        matcher = backend.matcher(backend.compile(GrammarSpec.json_schema(task.schema)))
    stops = StopRules(frozenset(vocabulary.stop_ids), max_new_tokens=max_tokens)
    return GrammarSession(vocabulary, matcher, stops=stops)


def answer_all(
    target: SlotTarget,
    num_slots: int,
    sessions: Callable[[Task], GrammarSession],
    encode: Callable[[str], list[int]],
    tasks: Iterable[Task],
    seed: int,
) -> Iterator[Answer]:
    """Answer tasks, as many at a time as there are slots; answers come as they end, short ones first."""
    waiting = iter(tasks)
    running: dict[int, tuple[Answer, GrammarSession]] = {}
    free = deque(range(num_slots))
    chooser = _Chooser(torch.Generator().manual_seed(seed))

    def settle(slots: Sequence[int], logits: Tensor) -> Iterator[Answer]:
        chosen = chooser.choose([running[slot] for slot in slots], logits)
        for slot, token in zip(slots, chosen, strict=True):
            answer, session = running[slot]
            session.commit([token])
            answer.tokens.append(token)
            if session.finish is not None:
                del running[slot]
                free.append(slot)
                yield answer

    is_more = True
    while is_more or running:
        if is_more and (len(free) >= _REFILL or not running):
            batch = list(islice(waiting, min(_REFILL, len(free))))
            is_more = bool(batch)
            if batch:
                slots = [free.popleft() for _ in batch]
                prompts = [encode(task.prompt) for task in batch]
                logits, features = target.prefill(slots, prompts)
                for slot, task, prompt, rows in zip(slots, batch, prompts, features, strict=True):
                    running[slot] = Answer(task, prompt, features=[rows]), sessions(task)
                yield from settle(slots, logits)
            continue
        slots = sorted(running)
        tokens = torch.zeros(num_slots, dtype=torch.int64)
        tokens[slots] = torch.tensor([running[slot][0].tokens[-1] for slot in slots])
        logits, rows = target.decode(tokens)
        for slot in slots:
            running[slot][0].features.append(rows[slot : slot + 1].clone())
        yield from settle(slots, logits[slots])


class _Chooser:
    """Masks, keeps the top of the distributions, and chooses."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def choose(self, rows: Sequence[tuple[Answer, GrammarSession]], logits: Tensor) -> list[int]:
        """The next token of each row, whose logits are `logits`, which are overwritten."""
        mask: NDArray[np.int32] = np.full((len(rows), rows[0][1].vocabulary.num_words), -1, np.int32)
        for i, (_, session) in enumerate(rows):
            if session.engaged:
                root = session.output[-1] if session.output else 0
                session.fill(HostTree.from_chains([[root]]), mask[i : i + 1])
        legal = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
        masked = logits.masked_fill_(torch.from_numpy(legal == 0), float("-inf"))
        values, ids = masked.topk(TOP)
        probs = (values - masked.logsumexp(-1, keepdim=True)).exp()
        chosen = ids[:, 0].tolist()
        for i, (answer, _) in enumerate(rows):
            answer.top_ids.append(ids[i].int())
            answer.top_probs.append(probs[i])
            if answer.task.temperature > 0:
                law = (values[i] / answer.task.temperature).softmax(-1)
                chosen[i] = int(ids[i, torch.multinomial(law, 1, generator=self._generator)])
        return chosen


def save_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write a shard; it appears whole or not at all."""
    tensors = {
        "tokens": torch.tensor([token for a in answers for token in (*a.prompt, *a.tokens)], dtype=torch.int32),
        "features": torch.cat([rows for a in answers for rows in a.features]),
        "top_ids": torch.stack([row for a in answers for row in a.top_ids]),
        "top_probs": torch.stack([row for a in answers for row in a.top_probs]),
        "prompt_lengths": torch.tensor([len(a.prompt) for a in answers]),
        "answer_lengths": torch.tensor([len(a.tokens) for a in answers]),
    }
    about = [vars(a.task) for a in answers]
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, {"tasks": json.dumps(about)})
    partial.rename(path)


def load_tasks(path: Path) -> list[Task]:
    """The tasks of a shard, in the order of its answers."""
    with safe_open(path, "pt") as stored:
        return [Task(**values) for values in json.loads(stored.metadata()["tasks"])]
