"""Constrained generation on real prompts: valid, equal, and how much faster.

    python -m benchmarks.constrained --limit 60

Runs `specgrammar generate` on the first BFCL entries, in file order and none skipped, with every backend and
algorithm, greedy in float32. Each output must be complete JSON that is valid against its schema (running out
of tokens is a failure), and all runs must give the same tokens. Speeds are ratios to `none` in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.bfcl import Entry, load_bfcl
from specgrammar.cli.table import table

BACKENDS = ("xgrammar", "llguidance")
ALGORITHMS = ("none", "ngram", "chain")


@dataclass(frozen=True)
class Outcome:
    """One run over all prompts."""

    backend: str
    algorithm: str
    token_ids: dict[str, list[int]]
    invalid: list[str]
    summary: dict[str, Any]


def generate(
    prompts: Path, entries: Sequence[Entry], backend: str, algorithm: str, flags: list[str]
) -> Outcome:
    """Run the command line and check every output."""
    command = [sys.executable, "-m", "specgrammar", "generate", "--prompts", str(prompts), "--output", "json"]
    command += ["--backend", backend, "--algorithm", algorithm, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    *lines, last = [json.loads(line) for line in done.stdout.splitlines()] or [{"summary": {}}]
    by_id = {line["id"]: line for line in lines}
    invalid = [problem for entry in entries if (problem := _problem(entry, by_id.get(entry.id)))]
    tokens = {name: line["token_ids"] for name, line in by_id.items()}
    return Outcome(backend, algorithm, tokens, invalid, last["summary"])


def _problem(entry: Entry, line: dict[str, Any] | None) -> str | None:
    """What is wrong with an output, or None."""
    if line is None or line["finish_reason"] != "stop":
        return f"{entry.id}: {'no output' if line is None else line['error'] or line['finish_reason']}"
    try:
        jsonschema.validate(json.loads(line["text"]), entry.schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{entry.id}: {str(error).splitlines()[0]}"
    return None


def main() -> int:
    """Run all combinations; 1 if an output is invalid or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=60, help="how many entries, from the start (default 60)")
    parser.add_argument("--batch-size", default="1", help="requests in one step (default 1)")
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")
    arguments = parser.parse_args()
    entries = load_bfcl(limit=arguments.limit)
    flags = ["--dtype", "float32", "--max-new-tokens", "512", "--batch-size", arguments.batch_size]
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text(
            "".join(json.dumps({"id": e.id, "prompt": e.prompt, "schema": e.schema}) + "\n" for e in entries)
        )
        outcomes = []
        for backend in BACKENDS:
            for algorithm in ALGORITHMS:
                print(f"running {backend}, {algorithm} ...", file=sys.stderr)
                outcomes.append(generate(prompts, entries, backend, algorithm, flags))
    return report(outcomes, len(entries), arguments.json)


def report(outcomes: Sequence[Outcome], num_entries: int, path: str | None) -> int:
    """Print the table and what is wrong."""
    first = outcomes[0]
    rows = []
    for outcome in outcomes:
        plain = next(o for o in outcomes if o.backend == outcome.backend and o.algorithm == "none")
        num_equal = sum(outcome.token_ids.get(name) == tokens for name, tokens in first.token_ids.items())
        speed, base = outcome.summary.get("tokens_per_second", 0.0), plain.summary.get("tokens_per_second", 0.0)
        rows.append(
            {
                "backend": outcome.backend,
                "algorithm": outcome.algorithm,
                "valid": f"{num_entries - len(outcome.invalid)}/{num_entries}",
                "equal": f"{num_equal}/{num_entries}",
                "mean accept length": outcome.summary.get("mean_accept_length", 0.0),
                "speed over none": round(speed / base, 2) if base else 0.0,
            }
        )
        for problem in outcome.invalid:
            print(f"{outcome.backend}, {outcome.algorithm}: {problem}", file=sys.stderr)
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    if path:
        Path(path).write_text(json.dumps(rows, indent=1) + "\n")
    good = f"{num_entries}/{num_entries}"
    return int(any(row["valid"] != good or row["equal"] != good for row in rows))


if __name__ == "__main__":
    sys.exit(main())
