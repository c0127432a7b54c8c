"""Does `auto` choose the mask policy that costs less? Eager, lazy and auto over a grid of loads.

    python -m benchmarks.mask_policy

Real grammars, trees and sessions on the CPU, with SmolLM2's vocabulary; the forward is a time that passes after
the launch while the host may work, as on a device. Each policy's step goes from the launch to the paths, so it
holds what is not hidden under the forward: masks, draws, walks. The target's choices are illegal as often as
was measured for SmolLM2-135M-Instruct (see `benchmarks.lazy_column`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.documents import load_documents
from benchmarks.grammars import Grammars
from benchmarks.lazy_column import batch_of, best_tokens
from benchmarks.scenes import Corpus, Scene
from benchmarks.vocabularies import load_vocabulary
from specgrammar.cli.table import table
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.staging import Resolved
from specgrammar.grammar.workers import FillWorkers
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.masking import EagerMasking, LaunchedStep, MaskParts, MaskPolicy
from specgrammar.runtime.policy import AutoMasking, describe
from specgrammar.runtime.trace import Trace
from specgrammar.trees.tree import DraftTree

BATCHES, NODES, FORWARDS_MS = (1, 4, 16, 64), (4, 16), (0.0, 5.0, 20.0)
ROUNDS_S, MIN_ROUNDS, MAX_ROUNDS = 2.0, 11, 60
TRIAL_STEPS = 30
"""More than `auto` needs to decide."""


@dataclass(frozen=True)
class Forward:
    """Logits that are there some time after the launch."""

    logits: torch.Tensor
    ready_at: float

    def wait(self) -> torch.Tensor:
        """The logits, when the forward is over."""
        time.sleep(max(0.0, self.ready_at - time.perf_counter()))
        return self.logits

    def value(self) -> torch.Tensor:
        """The same: work behind the forward runs when the forward is over."""
        return self.wait()


@dataclass(frozen=True)
class Cell:
    """One load: medians of a step in milliseconds, and what `auto` says."""

    bs: int
    num_nodes: int
    forward_ms: float
    eager_ms: float
    lazy_ms: float
    auto_ms: float
    said: str

    @property
    def over_better(self) -> float:
        """`auto` over the better one."""
        return self.auto_ms / min(self.eager_ms, self.lazy_ms)


def measure(scene: Scene, grammars: Grammars, forward_ms: float) -> Cell:
    """One cell: `auto` decides first, then the three take turns."""
    parts = mask_parts(grammars)
    auto = AutoMasking(parts, lambda choice: choice)
    step = stepper(scene, grammars, forward_ms / 1e3)
    for _ in range(TRIAL_STEPS):
        step(auto)
    policies: dict[str, MaskPolicy] = {"eager": EagerMasking(parts), "lazy": LazyMasking(parts), "auto": auto}
    spent: dict[str, list[float]] = {name: [] for name in policies}
    begin, order = time.perf_counter(), random.Random(0)
    for round_ in range(MAX_ROUNDS):
        if round_ >= MIN_ROUNDS and time.perf_counter() - begin > ROUNDS_S:
            break
        for name in order.sample(list(policies), len(policies)):
            spent[name].append(step(policies[name]))
    ms = {name: 1e3 * statistics.median(values) for name, values in spent.items()}
    return Cell(scene.bs, scene.num_nodes, forward_ms, ms["eager"], ms["lazy"], ms["auto"], describe(auto))


def mask_parts(grammars: Grammars) -> MaskParts:
    """What the policies work with, on the CPU."""
    device, vocabulary = InlineDevice(), grammars.vocabulary
    ring = BitmaskRing(device, vocabulary.num_words)
    return MaskParts(Ledger(), ring, device, vocabulary, FillWorkers(), "target_only", Trace())


def stepper(scene: Scene, grammars: Grammars, forward_s: float) -> Callable[[MaskPolicy], float]:
    """A step of the scene by any policy; returns its seconds and leaves the sessions as it found them."""
    sessions = [grammars.session("xgrammar", r.document.schema, r.committed) for r in scene.requests]
    best = torch.from_numpy(best_tokens(scene, grammars, "xgrammar"))
    logits = torch.randn(scene.tree.num_nodes, grammars.vocabulary.vocab_size)
    logits.scatter_(1, best, 100.0 - torch.arange(best.shape[1]).expand(len(best), -1))
    launched = LaunchedStep(
        batch_of(scene),
        sessions,
        DraftTree.from_host(0, scene.tree),
        Resolved(scene.tree),
        Forward(logits, 0.0),
        want_logprobs=False,
        launched_at=0.0,
    )

    def step(policy: MaskPolicy) -> float:
        copied = logits.clone()  # masks are applied in place
        begin = time.perf_counter()
        forward = Forward(copied, begin + forward_s)
        policy.verify(dataclasses.replace(launched, pending=forward, launched_at=begin))
        spent = time.perf_counter() - begin
        for session in sessions:
            session.advance()
            assert session.error is None, session.error
        return spent

    return step


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the grid; 1 if `auto` costs more than 10 % over the better policy in a cell."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mask_policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="four cells")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all cells")
    options = parser.parse_args(argv)
    grammars = Grammars(load_vocabulary("smollm2"))
    corpus = Corpus(load_documents(grammars.vocabulary, 8), grammars.vocabulary.stop_ids[-1])
    batches, forwards = ((1, 4), (0.0, 5.0)) if options.quick else (BATCHES, FORWARDS_MS)
    cells = []
    for bs in batches:
        for num_nodes in NODES[-1:] if options.quick else NODES:
            print(f"batch {bs}, {num_nodes} nodes ...", file=sys.stderr)
            scene = corpus.make_scene("ngram", bs, num_nodes)
            cells += [measure(scene, grammars, forward_ms) for forward_ms in forwards]
    rows = [
        [
            f"{c.bs}x{c.num_nodes}",
            c.forward_ms,
            *(f"{value:.2f}" for value in (c.eager_ms, c.lazy_ms, c.auto_ms, c.over_better)),
            c.said,
        ]
        for c in cells
    ]
    print(table(["cell", "forward ms", "eager ms", "lazy ms", "auto ms", "auto/better", "auto says"], rows))
    worst = max(cell.over_better for cell in cells)
    print(f"auto over the better policy, worst cell: {worst:.2f}")
    if options.json is not None:
        report = {"summary": {"auto_over_better_max": worst}, "cells": [asdict(cell) for cell in cells]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(worst > 1.1)


if __name__ == "__main__":
    sys.exit(main())
