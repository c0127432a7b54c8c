"""The mix of prompts that a head learns from, and the split that choices are made on.

Everything is generated from a seed. Validation prompts are of domains and forms that no training prompt is of.
The prompts of the benchmark (`benchmarks.bfcl`) are of neither: only the form of the prompt is shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from examples.train_eagle.chat import chat_prompt
from examples.train_eagle.domains import DOMAINS
from examples.train_eagle.extraction import json_prompt
from examples.train_eagle.functions import function_prompt

Split = Literal["train", "validation"]

HELD_OUT_DOMAINS = ("law", "real estate", "biology")

_SHARES = {"function": 0.3, "json": 0.1, "chat": 0.6}
_SAMPLED = 0.25
"""The share of training answers that are sampled, so that the head also meets texts off the greedy path."""


@dataclass(frozen=True)
class Task:
    """One prompt to be answered.

    Attributes:
        kind: `function`, `json` or `chat`.
        prompt: the user's message.
        schema: JSON text that the answer must follow; None for free text.
        family: the domain, or the form of a chat prompt; training and validation share none.
        temperature: 0 for the greedy answer.
    """

    kind: str
    prompt: str
    schema: str | None
    family: str
    temperature: float


def tasks(split: Split, seed: int) -> Iterator[Task]:
    """Tasks without end; a prompt comes once."""
    random = Random(f"{split} {seed}")
    names = tuple(name for name in DOMAINS if (name in HELD_OUT_DOMAINS) == (split == "validation"))
    seen: set[str] = set()
    while True:
        kind = random.choices(list(_SHARES), list(_SHARES.values()))[0]
        schema: str | None
        if kind == "chat":
            (prompt, family), schema = chat_prompt(random, split), None
        elif kind == "json":
            prompt, schema, family = json_prompt(random, names)
        else:
            prompt, schema, family = function_prompt(random, names)
        if prompt in seen:
            continue
        seen.add(prompt)
        is_sampled = split == "train" and random.random() < _SAMPLED
        yield Task(kind, prompt, schema, family, 0.7 if is_sampled else 0.0)
