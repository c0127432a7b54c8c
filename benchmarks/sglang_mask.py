"""sglang's `build_grammar_vocab_mask`: its own against our hook around it, in one run.

    python -m benchmarks.sglang_mask

32 requests with trees of 16 nodes on Llama-3's vocabulary (128k), real schemas, positions along real documents
(see `benchmarks.scenes`), as each of sglang's speculative workers calls it once a step. The columns:

    sglang BACKEND                sglang 0.5.23 with its own grammar objects and its own way to read the schema
    sglang BACKEND, our grammar   the same over the grammar that our backend compiled
    hook BACKEND                  the plugin: its hook, over the grammar objects of `specgrammar-BACKEND`

Rows of live nodes are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import numpy as np
import torch
import xgrammar

from benchmarks.documents import load_documents
from benchmarks.grammars import BACKENDS, Grammars
from benchmarks.scenes import KINDS, Corpus, Scene
from benchmarks.sglang_pieces import load
from benchmarks.timing import interleaved_medians
from benchmarks.vocabularies import load_vocabulary
from specgrammar.cli.table import table

BS, NUM_NODES = 32, 16

Build = Callable[[], Any]


@dataclass(frozen=True)
class Cell:
    """The medians of one kind of trees.

    Attributes:
        kind: of the trees.
        bs: requests.
        num_nodes: nodes of each tree.
        num_live: nodes that have a row of ours.
        seconds: the median of a step, by column.
    """

    kind: str
    bs: int
    num_nodes: int
    num_live: int
    seconds: dict[str, float]


def hooked() -> Callable[..., Any]:
    """Sglang's function with our hook around it, put there as sglang's hook registry does."""
    sglang = load()
    wrapped: Callable[..., Any] = sglang._wrap_fn(
        sglang.build_grammar_vocab_mask, sglang.mask.build_mask, sglang.HookType.AROUND
    )
    return wrapped


def stock(backend: str, grammars: Grammars, schema: str, *, ours: bool) -> Any:
    """Sglang's own grammar object for a schema, at its start; over the grammar that we compiled if `ours`."""
    compiled: Any = grammars.compiled(backend, schema) if ours else None
    if backend == "xgrammar":
        native = compiled.native if ours else grammars.xgrammar_alone(schema)
        size = grammars.vocabulary.vocab_size
        return load().XGrammarGrammar(xgrammar.GrammarMatcher(native), size, native, None)
    matcher = compiled.template if ours else grammars.llguidance_alone(schema)
    tokenizer = grammars.backends[backend]._tokenizer if ours else grammars._tokenizer
    return load().GuidanceGrammar(tokenizer, "", ll_matcher=matcher.deep_copy())


def plugged(backend: str, grammars: Grammars, schema: str) -> Any:
    """The plugin's grammar object, at its start."""
    compiled = grammars.compiled(backend, schema)
    return load().grammar.SglangGrammar(
        grammars.backends[backend], compiled, load().GrammarStats(dispatch_type="json")
    )


def step(
    function: Callable[..., Any], grammar_of: Callable[[str], Any], scene: Scene, vocab_size: int
) -> Build:
    """One step of a scene: a call of `function` as sglang's workers make it."""
    requests = []
    for request in scene.requests:
        grammar = grammar_of(request.document.schema)
        for token in request.committed:
            grammar.accept_token(token)
        requests.append(SimpleNamespace(grammar=grammar))
    tokens, next_token, next_sibling = map(torch.from_numpy, scene.tree.to_dense(scene.num_nodes))
    tree = load().GrammarTree.from_host(next_token, next_sibling, tokens)
    info = SimpleNamespace(vocab_size=vocab_size, grammar_mask=None)

    def build() -> Any:
        return function(reqs=requests, tree=tree, sampling_info=info, device="cpu", barrier=None)

    return build


def measure(scene: Scene, grammars: Grammars, budget: float) -> Cell:
    """One cell, all columns in turns.

    Args:
        scene: the step.
        grammars: compiled once.
        budget: seconds for all rounds.
    """
    size = grammars.vocabulary.vocab_size
    original, hook = load().build_grammar_vocab_mask, hooked()
    steps: dict[str, Build] = {}
    num_live = 0
    for backend in BACKENDS:
        own = partial(stock, backend, grammars, ours=False)
        over_ours = partial(stock, backend, grammars, ours=True)
        steps |= {
            f"sglang {backend}": step(original, own, scene, size),
            f"sglang {backend}, our grammar": step(original, over_ours, scene, size),
            f"hook {backend}": step(hook, partial(plugged, backend, grammars), scene, size),
        }
        expected = steps[f"sglang {backend}, our grammar"]().vocab_mask.numpy()
        got = steps[f"hook {backend}"]().vocab_mask.numpy()
        live = (got != -1).any(axis=1)
        assert np.array_equal(got[live], expected[live]), "the rows differ"
        num_live = int(live.sum())
    return Cell(scene.kind, scene.bs, scene.num_nodes, num_live, interleaved_medians(steps, budget))


def summarise(cells: Sequence[Cell]) -> dict[str, float]:
    """How many times faster the hook is than sglang with the same library, in the worst kind of trees."""
    return {
        f"{name}_over_hook": min(cell.seconds[name] / cell.seconds[f"hook {backend}"] for cell in cells)
        for backend in BACKENDS
        for name in (f"sglang {backend}", f"sglang {backend}, our grammar")
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sglang_mask",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the cells and the summary")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of measuring a kind of trees")
    options = parser.parse_args(argv)
    try:
        load()
        vocabulary = load_vocabulary("llama3")
        corpus = Corpus(load_documents(vocabulary, 12), vocabulary.stop_ids[-1])
    except RuntimeError as error:
        print(f"sglang_mask: {error}", file=sys.stderr)
        return 1
    grammars = Grammars(vocabulary)
    cells = [measure(corpus.make_scene(kind, BS, NUM_NODES), grammars, options.budget) for kind in KINDS]
    names = list(cells[0].seconds)
    print("Milliseconds for a step (median)")
    print(
        table(
            ["trees", "cell", "live", *names],
            [
                [
                    cell.kind,
                    f"{cell.bs}x{cell.num_nodes}",
                    f"{cell.num_live}/{cell.bs * cell.num_nodes}",
                    *(f"{1e3 * cell.seconds[name]:.3g}" for name in names),
                ]
                for cell in cells
            ],
        )
    )
    summary = summarise(cells)
    machine = {"python": platform.python_version(), "cpus": os.cpu_count()}
    for key, value in summary.items():
        print(f"{key}: {value:.1f}")
    if options.json is not None:
        report = {"summary": summary, "machine": machine, "cells": [asdict(cell) for cell in cells]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
