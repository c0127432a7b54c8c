"""The mask of a verify step on the host: ours beside sglang, vLLM, xgrammar and llguidance, in one run.

    python -m benchmarks.mask_build            the whole grid, under 5 minutes
    python -m benchmarks.mask_build --quick    Llama-3 and the cells of the summary, under 50 seconds

Real vocabularies, real schemas, positions along real documents, draft trees as ngram and EAGLE drafters make
them, and chains (see `benchmarks.scenes`). Everything that an engine has before the step is prepared; what is
timed is the step. The columns:

    sglang                   0.5.23's own `generate_token_bitmask` over its own grammar objects
    sglang, our grammar      the same over the grammar that our xgrammar backend compiled
    vllm                     0.32's `validate_tokens` and `grammar_bitmask` in its own process; chains only
    xgrammar walk            `traverse_draft_tree` for each request (also over our grammar)
    llguidance executor xT   its call for draft tokens on T threads; chains only
    ours BACKEND             `build_grammar_mask`, one thread
    ours BACKEND, threads    the same on as many threads as were measured to pay
    raw BACKEND              the library's own calls for the live nodes and nothing else: the floor
    memset live, dense       writing the rows of the live nodes, or of all nodes
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import numpy as np
import torch

from benchmarks.columns import Column, Eager, Memset, Raw, Rings
from benchmarks.documents import load_documents
from benchmarks.grammars import BACKENDS, Grammars
from benchmarks.lazy_column import Lazy
from benchmarks.mask_report import draw, print_report, summarise, write_json
from benchmarks.peers import LLGuidanceExecutor, Sglang, XGrammarWalk, load_sglang
from benchmarks.scenes import KINDS, Corpus, Scene
from benchmarks.timing import interleaved_medians, one_after_the_other
from benchmarks.vllm_peer import PYTHON_VARIABLE, Vllm
from benchmarks.vocabularies import VOCABULARIES, load_vocabulary
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import NodeStatus

BATCHES = (1, 8, 32, 128)
NODES = (4, 8, 16, 64)
QUICK_CELLS = ((1, 64), (8, 16), (32, 16), (128, 16))
"""(batch, nodes) of `--quick`, and of the vocabularies that are not the first."""


@dataclass(frozen=True)
class Cell:
    """The medians of one shape. Small batches are means over several scenes: one position says little.

    Attributes:
        vocabulary: its name.
        kind: of the trees, see `benchmarks.scenes`.
        bs: requests.
        num_nodes: nodes of each tree, the root among them.
        num_live: nodes of a step that have a row.
        legal_share: live and ended nodes of all nodes.
        seconds: the median of a step, by column.
        uploaded_bytes: what a step copies to the device: live rows and the node of each.
        dense_bytes: what a mask with a row for each node has.
    """

    vocabulary: str
    kind: str
    bs: int
    num_nodes: int
    num_live: float
    legal_share: float
    seconds: dict[str, float]
    uploaded_bytes: int
    dense_bytes: int


@dataclass
class Bench:
    """The columns, and what keeps them from being all: peers that are not here, by name, with the reason."""

    columns: list[Column]
    rings: Rings
    missing: dict[str, str] = field(default_factory=dict)
    vllm: Vllm | None = None

    @classmethod
    def with_peers(cls) -> Bench:
        """Ours, and every peer that is here or can be fetched."""
        rings = Rings()
        bench = cls([], rings)
        try:
            load_sglang()
            bench.columns += [Sglang(), Sglang(our_grammar=True)]
        except RuntimeError as error:
            bench.missing["sglang"] = str(error)
        python = Vllm.find()
        if python is None:
            bench.missing["vllm"] = f"run `make bench-peers`, or set {PYTHON_VARIABLE} to its interpreter"
        else:
            bench.vllm = Vllm(python)
            bench.columns.append(bench.vllm)
        num_cpus = os.cpu_count() or 1
        bench.columns += [XGrammarWalk(), XGrammarWalk(our_grammar=True)]
        bench.columns += [LLGuidanceExecutor(threads) for threads in sorted({1, num_cpus})]
        for backend in BACKENDS:
            bench.columns += [Eager(backend, rings), Eager(backend, rings, FillWorkers()), Raw(backend, rings)]
        bench.columns += [Lazy(backend, FillWorkers()) for backend in BACKENDS]
        bench.columns += [Memset(live_only=True, rings=rings), Memset(live_only=False, rings=rings)]
        return bench

    def measure(self, scenes: Sequence[Scene], grammars: Grammars, vocabulary: str, budget: float) -> Cell:
        """One cell: every column that can do such scenes, in turns; figures are means over the scenes."""
        steps = {}
        for column in self.columns:
            prepared = [step for scene in scenes if (step := column.prepare(scene, grammars)) is not None]
            if prepared:
                steps[column.name] = one_after_the_other(prepared)
        statuses = []
        for scene in scenes:
            mask = Eager(BACKENDS[0], self.rings).builder(scene, grammars)()
            statuses.append(mask.status)
            mask.discard()
        status = np.stack(statuses)
        num_live = float((status == NodeStatus.LIVE).sum() / len(scenes))
        row_bytes = 4 * grammars.vocabulary.num_words
        return Cell(
            vocabulary,
            scenes[0].kind,
            scenes[0].bs,
            scenes[0].num_nodes,
            num_live,
            float(np.isin(status, (NodeStatus.LIVE, NodeStatus.ENDED)).mean()),
            interleaved_medians(steps, budget),
            round(num_live * (row_bytes + 4)),
            scenes[0].tree.num_nodes * row_bytes,
        )


def run(
    vocabularies: Sequence[str],
    first_cells: Sequence[tuple[int, int]],
    bench: Bench,
    num_schemas: int,
    budget: float,
) -> list[Cell]:
    """Measure `first_cells` on the first vocabulary and the quick cells on the others, all kinds of trees.

    Args:
        vocabularies: names of `VOCABULARIES`.
        first_cells: (batch, nodes).
        bench: the columns.
        num_schemas: how many different schemas a vocabulary's requests have.
        budget: seconds for the rounds of a cell.
    """
    cells = []
    for name in vocabularies:
        vocabulary = load_vocabulary(name)
        grammars = Grammars(vocabulary)
        corpus = Corpus(load_documents(vocabulary, num_schemas), vocabulary.stop_ids[-1])
        for bs, num_nodes in first_cells if name == vocabularies[0] else QUICK_CELLS:
            print(f"{name}: batch {bs}, {num_nodes} nodes ...", file=sys.stderr)
            for kind in KINDS:
                scenes = [corpus.make_scene(kind, bs, num_nodes, seed) for seed in range(max(1, 8 // bs))]
                cells.append(bench.measure(scenes, grammars, name, budget))
    return cells


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mask_build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="Llama-3 and a few cells only, under 50 seconds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all cells and the summary")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw the columns (needs matplotlib)")
    options = parser.parse_args(argv)
    begin = time.perf_counter()
    bench = Bench.with_peers()
    try:
        if options.quick:
            cells = run(["llama3"], QUICK_CELLS, bench, num_schemas=10, budget=0.5)
        else:
            grid = [(bs, num_nodes) for bs in BATCHES for num_nodes in NODES]
            cells = run(list(VOCABULARIES), grid, bench, num_schemas=12, budget=0.8)
    except RuntimeError as error:
        print(f"mask_build: {error}", file=sys.stderr)
        return 1
    finally:
        if bench.vllm is not None:
            bench.vllm.close()
    machine = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    rows = [asdict(cell) for cell in cells]
    summary = summarise(rows)
    print_report(rows, summary, bench.missing, machine)
    if options.json is not None:
        write_json(options.json, rows, summary, bench.missing, machine)
    if options.png is not None:
        draw(options.png, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
