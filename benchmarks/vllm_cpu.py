"""vLLM 0.32 on the CPU: its own structured output with n-gram drafts, and the same with specgrammar in it.

    python -m benchmarks.vllm_cpu --out vllm.json

Engines run side by side, each in a process of its own, and take turns: each round every engine writes the same
24 BFCL calls (greedy, fp32), and no call comes twice. Beside tokens per second it measures what the scheduler's
thread spends in the three walks over drafts (validate, bitmask, accept) a step, and our fill thread beside it.
It needs `make bench-peers`, or SPECGRAMMAR_VLLM_PYTHON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bfcl import load_bfcl
from benchmarks.vllm_peer import Vllm
from specgrammar_transformers.model_store import fetch_default_model

_CALLS_OF_A_ROUND = 24

_ROOT = Path(__file__).resolve().parent.parent
_CHILD = Path(__file__).with_name("vllm_cpu_child.py")

_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_OURS = {"method": "custom_class", "model": "specgrammar_vllm.Proposer"}
_CORPUS = {"algorithm": "ngram", "algorithm_options": {"num_draft_tokens": 4, "depth": 4, "breadth": 1}}

ENGINES: dict[str, dict[str, Any]] = {
    "vLLM, ngram": {"speculative_config": _NGRAM},
    "vLLM, ngram of 8": {"speculative_config": {**_NGRAM, "num_speculative_tokens": 8}},
    "specgrammar, vLLM's rows and ngram": {
        "speculative_config": _NGRAM,
        "options": {"forced_drafts": False},
    },
    "the same with our rows": {
        "speculative_config": _NGRAM,
        "options": {"forced_drafts": False, "grammars": "specgrammar"},
    },
    "our rows, ngram with corpus": {
        "speculative_config": {**_OURS, "num_speculative_tokens": 4},
        "options": {"forced_drafts": False, "grammars": "specgrammar", **_CORPUS},
    },
    "our rows, vLLM's ngram, forced drafts up to 8": {
        "speculative_config": {**_NGRAM, "num_speculative_tokens": 8},
        "options": {"grammars": "specgrammar"},
    },
    "our rows, ngram with corpus, forced drafts up to 8": {
        "speculative_config": {**_OURS, "num_speculative_tokens": 8},
        "options": {"grammars": "specgrammar", **_CORPUS},
    },
    "vLLM's rows, ngram with corpus, forced drafts up to 8": {
        "speculative_config": {**_OURS, "num_speculative_tokens": 8},
        "options": _CORPUS,
    },
    "our rows, forced drafts up to 8 alone": {
        "speculative_config": {**_OURS, "num_speculative_tokens": 8},
        "options": {"grammars": "specgrammar", "algorithm": "none"},
    },
}
"""By name: how vLLM is made, and the table `specgrammar` of `additional_config`; without one it is stock."""


_COLUMNS = {
    "tokens_per_s": 1,
    "speedup": 2,
    "tokens_per_step": 1,
    "walks_us": 0,
    "walks_less": 1,
    "validate_us": 0,
    "bitmask_us": 0,
    "accept_us": 0,
    "aside_us": 0,
}
"""What the table shows, with so many digits."""


class Engine:
    """A vLLM engine in a process of its own, which answers with what a round took."""

    def __init__(
        self, python: Path, name: str, num_calls: int, num_threads: int, settings: Mapping[str, object]
    ) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: it did not start.
        """
        self.name = name
        environment = {
            **os.environ,
            "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
            "PYTHONPATH": str(_ROOT),
            "OMP_NUM_THREADS": str(num_threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        self._process = subprocess.Popen(
            [str(python), str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=_ROOT,
        )
        entries = [{"prompt": entry.prompt, "schema": entry.schema} for entry in load_bfcl(limit=num_calls)]
        self.ask({"model": str(fetch_default_model()), "entries": entries, **settings, **ENGINES[name]})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and wait for the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(
    python: Path, names: Sequence[str], num_rounds: int, num_threads: int, **settings: object
) -> dict[str, Any]:
    """Rounds of some engines in turn; a first one, which compiles and fills caches, does not count.

    Args:
        python: vLLM's interpreter.
        names: of `ENGINES`; the first is what the others are compared with.
        num_rounds: that count.
        num_threads: of an engine.
        settings: of all engines, see `vllm_cpu_child`.

    Returns:
        For each engine the medians over rounds: `tokens_per_s`, and in microseconds a step `walks_us` (the
        scheduler's thread), its parts, and `aside_us` (the fill thread); `speedup` and `walks_less`, how many
        times more tokens a second and less time in walks than the first engine in the same round; `same_text`
        as the first.
    """
    num_calls = _CALLS_OF_A_ROUND * (num_rounds + 1)
    engines = [Engine(python, name, num_calls, num_threads, settings) for name in names]
    try:
        slices = [[begin, begin + _CALLS_OF_A_ROUND] for begin in range(0, num_calls, _CALLS_OF_A_ROUND)]
        rounds = [[engine.ask({"slice": part}) for engine in engines] for part in slices]
    finally:
        for engine in engines:
            engine.close()
    found: dict[str, Any] = {}
    for column, engine in enumerate(engines):
        mine = [answers[column] for answers in rounds]
        found[engine.name] = {
            key: median(answer[key] for answer in mine[1:]) for key in mine[0] if key != "texts"
        }
        for key, ratio in (("tokens_per_s", "speedup"), ("walks_us", "walks_less")):
            ratios = [answers[column][key] / answers[0][key] for answers in rounds[1:]]
            found[engine.name][ratio] = median(ratios if ratio == "speedup" else [1 / it for it in ratios])
        found[engine.name]["same_text"] = all(
            answer["texts"] == stock["texts"] for answer, (stock, *_) in zip(mine, rounds, strict=True)
        )
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    lines = [
        "| engine | tokens/s | against the first | tokens a step | walks, us a step | times less | validate "
        "| bitmask | accept | aside | text |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        cells = [
            name,
            *(f"{row[key]:.{digits}f}" for key, digits in _COLUMNS.items()),
            "same" if row["same_text"] else "other",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_cpu", description="vLLM on the CPU.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default: 3)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ENGINES,
        metavar="ENGINE",
        help=f"the first is what the others are compared with, each takes 2.5 GB: {'; '.join(ENGINES)}",
    )
    parser.add_argument("--batch-size", type=int, default=8, help="most requests in a step (default: 8)")
    parser.add_argument("--compact", action="store_true", help="JSON without whitespace in all engines")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of an engine")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(argv)
    python = Vllm.find()
    if python is None:
        print("vllm_cpu: no environment with vLLM; run `make bench-peers`", file=sys.stderr)
        return 1
    found = measure(
        python,
        options.only or list(ENGINES),
        options.rounds,
        options.threads,
        compact=options.compact,
        batch_size=options.batch_size,
    )
    print(table(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
