"""What became of each source's drafts, as a table and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specgrammar.cli.table import table

if TYPE_CHECKING:
    from specgrammar.runtime.sources import SourceTable

_COLUMNS = (
    "source",
    "proposed",
    "legal",
    "pruned",
    "verified",
    "accepted",
    "drafting ms",
    "ms per accepted",
)


def sources_as_json(sources: SourceTable) -> dict[str, Any]:
    """The counts by source, and what a verified node costs; empty where no tree named its sources.

    A time is null where it was not measured.
    """
    if not sources.counts:
        return {}
    node_s = sources.costs.per_node_s()
    return {
        "ms_per_verified_node": _ms(node_s),
        "sources": {
            name: {
                "num_proposed": counts.num_proposed,
                "num_legal": counts.num_legal,
                "num_pruned": counts.num_pruned,
                "num_verified": counts.num_verified,
                "num_accepted": counts.num_accepted,
                "drafting_ms": _ms(counts.drafting_s),
                "ms_per_accepted": _ms(counts.cost_per_accepted_s(node_s)),
            }
            for name, counts in sources.counts.items()
        },
    }


def source_table(sources: SourceTable) -> str:
    """The same as a table, and in a line below it what its last column is made of."""
    found = sources_as_json(sources)
    rows = [
        [name, *("" if value is None else value for value in counts.values())]
        for name, counts in found["sources"].items()
    ]
    node_ms = found["ms_per_verified_node"]
    if node_ms is None:
        note = "what a verified node costs was not measured: steps of one size, or a device that works aside"
    else:
        note = f"ms per accepted: (verified x {node_ms:.3f} ms a node, as measured, + drafting) / accepted"
    return f"{table(_COLUMNS, rows)}\n{note}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 4)
