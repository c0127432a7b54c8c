"""Tokens per verify step of draft heads, on prompts that no head was trained on.

    python -m examples.train_eagle.measure
    python -m examples.train_eagle.measure --heads MY_HEAD OTHER_HEAD random

JSON: the first entries of BFCL v4 `simple_python` with their schemas (`benchmarks.bfcl`). Text: chat prompts of
forms that training leaves out. The target answers greedily in float32, once; the answers are kept in the work
folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.bfcl import load_bfcl
from examples.train_eagle.answers import answer_all, open_session, save_answers
from examples.train_eagle.batches import Example, load_examples
from examples.train_eagle.drafting import CHAIN, TREE, Known, Shape, count_steps
from examples.train_eagle.prompts import Task, tasks
from examples.train_eagle.target import SlotTarget
from examples.train_eagle.workshop import DRAFT_VOCABULARY, FEATURE_LAYERS, Workshop
from specgrammar.cli.table import table
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.spec.eagle.head import EagleHead

SHIPPED = Path(__file__).parents[2] / "specgrammar/spec/eagle/heads/smollm2-135m-instruct"
WORK = Path("build/train_eagle")
COLUMNS = ("chain", "chain, grammar", "tree", "tree, grammar", "text, tree")


def bfcl_tasks(limit: int) -> list[Task]:
    """The benchmark's prompts."""
    return [Task("bfcl", e.prompt, json.dumps(e.schema), e.id, 0.0) for e in load_bfcl(limit=limit)]


def text_tasks(limit: int) -> list[Task]:
    """Chat prompts of the split that choices are made on."""
    return list(islice((task for task in tasks("validation", 1) if task.kind == "chat"), limit))


def answered(workshop: Workshop, name: str, wanted: Sequence[Task], max_tokens: int) -> list[Example]:
    """The target's greedy answers in float32, from the work folder where they are there."""
    path = workshop.folder / f"measure-{name}-{len(wanted)}.safetensors"
    if not path.exists():
        print(f"the target answers {len(wanted)} prompts ({name}) ...", file=sys.stderr)
        encode, vocabulary = workshop.adapter.encode_prompt, workshop.adapter.vocabulary
        longest = max(len(encode(task.prompt)) for task in wanted) + max_tokens + 2
        target = SlotTarget(workshop.load_model("float32"), len(wanted), longest, FEATURE_LAYERS)
        answers = answer_all(
            target,
            len(wanted),
            lambda task: open_session(vocabulary, workshop.backend, task, max_tokens),
            encode,
            wanted,
            0,
        )
        save_answers(path, list(answers))
    return load_examples([path], range(len(FEATURE_LAYERS)), None)


def known_answers(
    workshop: Workshop, head: EagleHead, examples: Sequence[Example], *, grammar: bool
) -> list[Known]:
    """The answers as `count_steps` takes them, with the features that the head reads."""
    columns = [FEATURE_LAYERS.index(layer) for layer in head.config.feature_layers]
    found = []
    for e in examples:
        schema = e.task.schema
        own = e.tokens[: e.prompt_length].tolist()
        matcher = None
        if schema is not None:
            own += schema_ids(workshop, schema)
            if grammar:
                matcher = workshop.backend.matcher(workshop.backend.compile(GrammarSpec.json_schema(schema)))
        features = torch.unflatten(e.features, 1, (len(FEATURE_LAYERS), -1))[:, columns].flatten(1)
        found.append(Known(e.tokens, e.prompt_length, features, torch.tensor(own), matcher))
    return found


def schema_ids(workshop: Workshop, schema: str) -> list[int]:
    """The tokens of a schema's names and members, as they stand in JSON."""
    encode = workshop.adapter.vocabulary.encode
    assert encode is not None
    ids: list[int] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            for name, inner in part.items():
                ids.extend((*encode(f'"{name}": '), *encode(f' "{name}"')))
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)
        elif isinstance(part, str):
            ids.extend((*encode(f'"{part}"'), *encode(f' "{part}"')))

    walk(json.loads(schema))
    return ids


def measure(
    workshop: Workshop, head: EagleHead, bfcl: Sequence[Example], text: Sequence[Example]
) -> list[float]:
    """Tokens per verify step in each of `COLUMNS`."""

    def mean(examples: Sequence[Example], shape: Shape, *, grammar: bool = False) -> float:
        steps = count_steps(head, known_answers(workshop, head, examples, grammar=grammar), shape)
        return sum(one.num_tokens for one in steps) / sum(one.num_steps for one in steps)

    return [
        mean(bfcl, CHAIN),
        mean(bfcl, CHAIN, grammar=True),
        mean(bfcl, TREE),
        mean(bfcl, TREE, grammar=True),
        mean(text, TREE),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure heads and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.train_eagle.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--heads", nargs="+", default=[str(SHIPPED)], help="folders of heads; `random` is an untrained one"
    )
    parser.add_argument("--work", type=Path, default=WORK, help=f"folder for answers (default {WORK})")
    parser.add_argument("--limit", type=int, default=60, help="how many prompts of each kind (default 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    options = parser.parse_args(argv)
    workshop = Workshop(options.work)
    bfcl = answered(workshop, "bfcl", bfcl_tasks(options.limit), 512)
    text = answered(workshop, "text", text_tasks(options.limit), 128)
    figures: dict[str, list[float]] = {}
    for name in options.heads:
        print(f"measuring {name} ...", file=sys.stderr)
        if name == "random":
            head = workshop.new_head(torch.arange(DRAFT_VOCABULARY), seed=0).eval()
        else:
            head = workshop.load_head(Path(name))
        figures[name] = measure(workshop, head, bfcl, text)
    rows = [[Path(name).name, *(f"{value:.2f}" for value in values)] for name, values in figures.items()]
    print(table(["tokens per verify step", *COLUMNS], rows))
    if options.json is not None:
        report = {name: dict(zip(COLUMNS, values, strict=True)) for name, values in figures.items()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
