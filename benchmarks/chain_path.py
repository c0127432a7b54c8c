"""What the fast path of EAGLE chains leaves out: torch operations and time of a step's tree, without the head.

    python -m benchmarks.chain_path

The general path grows a tree of one node a level and builds it (concatenates, sorts, gathers, links); the fast
path writes tokens behind one another. Both are given the same drafts and give the same chains. Operations are
those that the profiler counts at the top, allocations and views included; times are medians of turns on one
thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import interleaved_medians
from specgrammar.cli.table import table
from specgrammar.spec.eagle.chain_growth import ChainGrowth
from specgrammar.spec.eagle.growth import Growth

SHAPES = tuple((bs, num_steps) for bs in (1, 32, 128) for num_steps in (1, 4, 8))


class Drafts:
    """Best tokens and log-probabilities of each level, as a head would have them."""

    def __init__(self, bs: int, num_steps: int) -> None:
        generator = torch.Generator().manual_seed(bs + num_steps)
        self.roots = torch.arange(bs)
        self.ids = [torch.randint(0, 50_000, (bs, 1), generator=generator) for _ in range(num_steps)]
        self.logprobs = [-torch.rand(bs, 1, generator=generator) for _ in range(num_steps)]

    def grow(self, kind: type[Growth | ChainGrowth]) -> Growth | ChainGrowth:
        """All levels, with what an expansion would read of each."""
        growth = kind(self.ids[0], self.logprobs[0])
        for ids, logprobs in zip(self.ids[1:], self.logprobs[1:], strict=True):
            _ = growth.frontier_tokens, growth.ancestors
            growth.grow(ids[:, None], logprobs[:, None])
            growth.at_parents(logprobs[:, None])
        return growth

    def fast(self) -> torch.Tensor:
        """The chains, by the fast path."""
        growth = self.grow(ChainGrowth)
        assert isinstance(growth, ChainGrowth)
        return growth.build(self.roots)

    def general(self) -> torch.Tensor:
        """The chains, as trees."""
        growth = self.grow(Growth)
        assert isinstance(growth, Growth)
        return growth.build(self.roots, len(self.ids) + 1).tokens


def num_operations(drafts: Drafts, path: str) -> int:
    """How many torch operations a path starts."""
    run = getattr(drafts, path)
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return sum(event.cpu_parent is None for event in profiler.events() or ())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 1 if the paths differ."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chain_path",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for bs, num_steps in SHAPES:
        drafts = Drafts(bs, num_steps)
        if not torch.equal(drafts.fast(), drafts.general()):
            print(f"chain_path: the paths differ at batch {bs}, {num_steps} steps", file=sys.stderr)
            return 1
        seconds = interleaved_medians(
            {"general": drafts.general, "fast": drafts.fast}, budget=1.0, max_rounds=400
        )
        rows.append(
            {
                "batch": bs,
                "draft steps": num_steps,
                "operations, general": num_operations(drafts, "general"),
                "operations, fast": num_operations(drafts, "fast"),
                "us, general": round(1e6 * seconds["general"]),
                "us, fast": round(1e6 * seconds["fast"]),
                "times as fast": round(seconds["general"] / seconds["fast"], 1),
            }
        )
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
