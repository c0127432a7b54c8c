"""What the soak says: is a series flat, by which figures, as a table, JSON and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.picture import load_pyplot
from specgrammar.cli.table import table

WARM_UP = 0.25
"""The share of windows that is left out."""
TOLERANCE, MOST_SPREAD = 0.15, 0.30
MOST_BYTES, MOST_OBJECTS = 1024, 0.01
"""What a token, or a short request, may add."""
_UNITS = {"long": (10_000, "10,000 tokens"), "short": (1_000, "1,000 requests")}


@dataclass(frozen=True)
class Window:
    """A stretch of steps, in seconds, and what the process held behind it.

    Attributes:
        end: tokens that every request has written, or requests that are over.
        step: the median step.
        mean_step: the mean, which the long ones are in.
        worst_step: the longest.
        request: the median request, compiling included; None in runs of long ones.
        rss_bytes: memory of the process.
        num_objects: Python objects that the garbage collector knows.
        num_threads: Python's.
        num_held: elements and bytes that the engine holds, see `benchmarks.footprint`.
    """

    end: int
    step: float
    mean_step: float
    worst_step: float
    request: float | None
    rss_bytes: int
    num_objects: int
    num_threads: int
    num_held: int


@dataclass(frozen=True)
class Run:
    """The windows of one engine; `kind` is `long` or `short`, `bs` the requests that it decodes at once."""

    kind: str
    backend: str
    algorithm: str
    policy: str
    bs: int
    windows: list[Window]

    @property
    def name(self) -> str:
        """Kind and setup."""
        return f"{self.kind} {self.backend} {self.algorithm} {self.policy}"

    @property
    def warm(self) -> list[Window]:
        """The windows that count."""
        return self.windows[int(len(self.windows) * WARM_UP) :]


@dataclass(frozen=True)
class Trend:
    """A series over tokens or requests.

    Attributes:
        first: median of the first third of the windows.
        last: of the last.
        ratio: last over first.
        slope: of the line through all windows, relative to their mean, for 10,000 tokens or 1,000 requests.
        spread: between the 10th and the 90th percentile around that line, relative to the mean.
        verdict: `flat`, `grows`, `falls` or `too noisy`.
    """

    first: float
    last: float
    ratio: float
    slope: float
    spread: float
    verdict: str

    @classmethod
    def of(cls, ends: Sequence[int], values: Sequence[float], unit: int) -> Trend:
        """Judge at least three windows; `unit` is what `slope` is given for."""
        third = max(1, len(values) // 3)
        first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
        mean = float(np.mean(values))
        slope, offset = np.polyfit(ends, values, 1)
        residuals = np.array(values) - (slope * np.array(ends) + offset)
        low, high = np.percentile(residuals, (10, 90))
        spread, ratio = float(high - low) / mean, last / first
        if abs(ratio - 1) <= TOLERANCE:
            verdict = "flat" if spread <= MOST_SPREAD else "too noisy"
        elif abs(ratio - 1) <= spread:
            verdict = "too noisy"
        else:
            verdict = "grows" if ratio > 1 else "falls"
        return cls(first, last, ratio, float(slope) * unit / mean, spread, verdict)


@dataclass(frozen=True)
class Memory:
    """What the warm windows added.

    Attributes:
        rss_bytes: to the process.
        num_objects: Python objects.
        num_threads: threads.
        num_held: elements and bytes in the engine.
        verdict: `flat` or `grows`.
    """

    rss_bytes: int
    num_objects: int
    num_threads: int
    num_held: int
    verdict: str

    @classmethod
    def of(cls, run: Run) -> Memory:
        """Judge a run."""
        begin, end = run.warm[0], run.warm[-1]
        rss, objects = end.rss_bytes - begin.rss_bytes, end.num_objects - begin.num_objects
        threads, held = end.num_threads - begin.num_threads, end.num_held - begin.num_held
        objects -= len(run.warm) - 1  # the windows themselves
        num = (end.end - begin.end) * run.bs
        flat = rss <= MOST_BYTES * num and objects <= MOST_OBJECTS * num and threads <= 0
        return cls(rss, objects, threads, held, "flat" if flat else "grows")


def trends(run: Run) -> dict[str, Trend]:
    """The trend of the steps, and of the requests where there are many."""
    ends, unit = [window.end for window in run.warm], _UNITS[run.kind][0]
    found = {"step": Trend.of(ends, [window.step for window in run.warm], unit)}
    requests = [window.request for window in run.warm if window.request is not None]
    if requests:
        found["request"] = Trend.of(ends, requests, unit)
    return found


def judged(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    return asdict(run) | {
        "trends": {name: asdict(trend) for name, trend in trends(run).items()},
        "memory": asdict(Memory.of(run)),
    }


def print_report(runs: Sequence[Run], machine: Mapping[str, Any]) -> None:
    """Print a table of times, one of memory, and what is not flat."""
    rows, verdicts = [], []
    for run in runs:
        for name, trend in trends(run).items():
            rows.append(
                [
                    run.name,
                    name,
                    f"{1e6 * trend.first:.0f}",
                    f"{1e6 * trend.last:.0f}",
                    f"{trend.ratio:.2f}",
                    f"{trend.slope:+.1%} / {_UNITS[run.kind][1]}",
                    f"{trend.spread:.1%}",
                    f"{1e6 * max(window.worst_step for window in run.warm):.0f}",
                    trend.verdict,
                ]
            )
            verdicts.append((f"time per {name}: {run.name}", trend.verdict))
    print("Microseconds of the host, the target not counted: medians of the first and last third of windows")
    print(table(["run", "per", "first", "last", "ratio", "slope", "spread", "worst step", "verdict"], rows))
    memories = [Memory.of(run) for run in runs]
    print("\nWhat was added behind the warm-up")
    print(
        table(
            ["run", "RSS MB", "objects", "threads", "held by the engine", "verdict"],
            [
                [r.name, f"{m.rss_bytes / 2**20:+.2f}", m.num_objects, m.num_threads, m.num_held, m.verdict]
                for r, m in zip(runs, memories, strict=True)
            ],
        )
    )
    verdicts += [(f"memory: {run.name}", memory.verdict) for run, memory in zip(runs, memories, strict=True)]
    print()
    for what, verdict in verdicts:
        print(f"{verdict:<9} {what}")
    print(", ".join(f"{key} {value}" for key, value in machine.items()))


def draw(path: Path, runs: Sequence[Run]) -> None:
    """Draw the steps' times, all windows; says so where there is no matplotlib."""
    pyplot = load_pyplot()
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(1, len(_UNITS), figsize=(12, 5))
    labels = {"long": "tokens written by each request", "short": "earlier requests"}
    for axis, kind in zip(axes, _UNITS, strict=True):
        for run in runs:
            if run.kind == kind:
                name = run.name.removeprefix(f"{kind} ")
                ends, steps = [w.end for w in run.windows], [1e6 * w.step for w in run.windows]
                axis.plot(ends, steps, "-o", markersize=3, label=name)
        axis.set(xlabel=labels[kind], ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds of the host for a step (median)")
    axes[0].legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
