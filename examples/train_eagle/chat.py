"""Plain chat prompts: requests of many forms about many things, for free text."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal

from examples.train_eagle.words import PARTS, WORDS, word

_LINES = Path(__file__).with_name("chat_forms.txt").read_text(encoding="utf-8").splitlines()
FORMS = {
    "train": tuple(line.removeprefix("train: ") for line in _LINES if line.startswith("train: ")),
    "validation": tuple(line.removeprefix("held out: ") for line in _LINES if line.startswith("held out: ")),
}
"""Forms of prompts by split, which share none."""

_TWICE = ("animal", "country", "ingredient", "job", "language", "material", "subject", "unit")
_PARTS = ("topic", "action", "code", "adjective", "proverb")
_THINGS = ("animal", "plant", "instrument", "food", "material", "planet", "vehicle")


def chat_prompt(random: Random, split: Literal["train", "validation"]) -> tuple[str, str]:
    """A prompt and its family, which is its form."""
    form = random.choice(FORMS[split])
    values = {kind: word(kind, random) for kind in (*WORDS, "first")}
    values |= {f"{kind}2": word(kind, random) for kind in _TWICE}
    values |= {part: random.choice(PARTS[part]) for part in _PARTS}
    values |= {
        "topic2": random.choice(PARTS["topic"]),
        "thing": word(random.choice(_THINGS), random),
        "n": str(random.randrange(3, 8)),
        "a": str(random.randrange(10, 500)),
        "b": str(random.randrange(10, 500)),
    }
    return form.format(**values), form
