"""What the mask benchmark says: tables, the summary, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.picture import load_pyplot
from specgrammar.cli.table import table

Row = Mapping[str, Any]

_MIN_SECONDS = 1e-3
"""Ratios to the raw calls are judged in cells of at least this much work."""


def summarise(cells: Sequence[Row]) -> dict[str, float | None]:
    """The figures that are promised; None where the run did not measure one.

    `eager_vs_sglang_min_bs8`: how many times faster than sglang's function the faster backend is, in the
    worst cell of at least 8 requests; `eager_vs_sglang_1x64`: in the worst with one tree of 64 nodes;
    `lazy_vs_sglang_128x16`: of the lazy path, in the worst with 128 requests of 16 nodes;
    `eager_over_raw_max`: our time over the raw calls', one thread, the worst backend and cell;
    `threads_128x16_BACKEND`: how many times faster as many threads as pay are than one, in the worst of those.
    """
    eager = [(cell, ratio) for cell in cells if (ratio := _over(cell, "sglang", "ours ")) is not None]
    lazy = [(cell, ratio) for cell in cells if (ratio := _over(cell, "sglang", "lazy ")) is not None]
    return {
        "eager_vs_sglang_min_bs8": _least(ratio for cell, ratio in eager if cell["bs"] >= 8),
        "eager_vs_sglang_1x64": _least(ratio for cell, ratio in eager if _shape(cell) == (1, 64)),
        "lazy_vs_sglang_128x16": _least(ratio for cell, ratio in lazy if _shape(cell) == (128, 16)),
        "eager_over_raw_max": max(
            (ratio for cell in cells for ratio in _over_raw(cell).values() if ratio is not None), default=None
        ),
        **{
            f"threads_128x16_{backend}": _least(
                cell["seconds"][f"ours {backend}"] / cell["seconds"][f"ours {backend}, threads"]
                for cell in cells
                if _shape(cell) == (128, 16)
            )
            for backend in _backends(cells)
        },
    }


def print_report(
    cells: Sequence[Row], summary: Mapping[str, Any], missing: Mapping[str, str], machine: Row
) -> None:
    """Print times, ratios, bytes and the summary."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["seconds"]))
    times = [
        [*_label(cell), f"{cell['legal_share']:.0%}", *(_ms(cell["seconds"].get(name)) for name in names)]
        for cell in cells
    ]
    print("Milliseconds for a step (median)")
    print(table(["vocabulary", "trees", "cell", "legal", *names], times))
    peers = [name for name in names if name.split()[0] not in ("ours", "raw", "memset", "lazy")]
    over_raw = [name for name in names if name.startswith("raw ")]
    ratios = [
        [
            *_label(cell),
            *(_number(_over(cell, peer, "ours ")) for peer in peers),
            _number(_over(cell, "sglang", "raw ")),
            *(_number(_over_raw(cell, 0.0)[name.removeprefix("raw ")], 2) for name in over_raw),
        ]
        for cell in cells
    ]
    print("\nHow many times faster our fastest way is than ...; sglang over raw calls; ours over raw calls")
    print(
        table(
            ["vocabulary", "trees", "cell", *peers, "sglang/raw", *(f"ours/{name}" for name in over_raw)],
            ratios,
        )
    )
    uploads = [
        [
            *_label(cell),
            f"{cell['num_live']:.0f}/{cell['bs'] * cell['num_nodes']}",
            f"{cell['uploaded_bytes'] / 1e6:.2f}",
            f"{cell['dense_bytes'] / 1e6:.2f}",
            f"{cell['uploaded_bytes'] / cell['dense_bytes']:.0%}",
        ]
        for cell in cells
    ]
    print("\nUploaded for a step, against a mask with a row for each node")
    print(table(["vocabulary", "trees", "cell", "rows", "MB", "dense MB", "share"], uploads))
    shares = [cell["legal_share"] for cell in cells]
    print(f"\nLegal share of all nodes, mean over the cells: {sum(shares) / len(shares):.0%}")
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    for key, value in summary.items():
        print(f"{key}: {'not measured' if value is None else round(value, 2)}")


def write_json(
    path: Path, cells: Sequence[Row], summary: Mapping[str, Any], missing: Mapping[str, str], machine: Row
) -> None:
    """Write everything that was measured."""
    report = {"summary": summary, "machine": machine, "missing": missing, "cells": cells}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def draw(path: Path, cells: Sequence[Row]) -> None:
    """Draw the first vocabulary's times over the size of the step; says so where there is no matplotlib."""
    pyplot = load_pyplot()
    if pyplot is None:
        return
    kinds = list(dict.fromkeys(cell["kind"] for cell in cells))
    names = list(dict.fromkeys(name for cell in cells for name in cell["seconds"]))
    color = dict(zip(names, pyplot.get_cmap("tab20").colors, strict=False))  # the same in all panels
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(6 * len(kinds), 5), sharey=True, squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        chosen = [c for c in cells if c["kind"] == kind and c["vocabulary"] == cells[0]["vocabulary"]]
        chosen.sort(key=lambda cell: cell["num_live"])
        for name in dict.fromkeys(name for cell in chosen for name in cell["seconds"]):
            points = [(c["num_live"], 1e3 * c["seconds"][name]) for c in chosen if name in c["seconds"]]
            style = {"ours": "-o", "lazy": "-o", "raw": ":"}.get(name.split()[0], "--")
            axis.plot(*zip(*points, strict=True), style, markersize=3, label=name, color=color.get(name))
        axis.set(xscale="log", yscale="log", xlabel="live nodes in the step", title=f"{kind} trees")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("milliseconds for a step")
    axes[0][-1].legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _over(cell: Row, name: str, prefix: str) -> float | None:
    """A column's time over the least of those whose names begin with `prefix`."""
    seconds = cell["seconds"]
    ours = [value for key, value in seconds.items() if key.startswith(prefix)]
    return seconds[name] / min(ours) if ours and name in seconds else None


def _over_raw(cell: Row, min_seconds: float = _MIN_SECONDS) -> dict[str, float | None]:
    """By backend: our time in one thread over the raw calls'; None where that is less than `min_seconds`."""
    seconds = cell["seconds"]
    backends = [name.removeprefix("raw ") for name in seconds if name.startswith("raw ")]
    return {
        backend: seconds[f"ours {backend}"] / raw if (raw := seconds[f"raw {backend}"]) >= min_seconds else None
        for backend in backends
    }


def _backends(cells: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(name for cell in cells for name in cell["seconds"] if name.endswith(", threads"))
    return [name.removeprefix("ours ").removesuffix(", threads") for name in names]


def _shape(cell: Row) -> tuple[int, int]:
    return cell["bs"], cell["num_nodes"]


def _least(ratios: Iterable[float]) -> float | None:
    return min(ratios, default=None)


def _label(cell: Row) -> list[str]:
    return [cell["vocabulary"], cell["kind"], f"{cell['bs']}x{cell['num_nodes']}"]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g}"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"
