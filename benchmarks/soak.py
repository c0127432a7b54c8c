"""Whether a step costs the same after 10,000 tokens and after thousands of requests, and whether memory stays.

    python -m benchmarks.soak            under 4 minutes
    python -m benchmarks.soak --quick    under 40 seconds

The engine is the real one, with real grammars and a real vocabulary; only the model is missing (see
`benchmarks.soak_target`). Timed is the host's work: everything but the target, and compiling by itself.

    long     a batch of requests that each write one long array of objects
    short    one request after the other through one engine, over a pool of schemas

Both are cut into windows; a window's figure is the median of its steps (or requests), so that a step that is
long by itself, such as one that makes an index larger, does not count there but as `worst`. The first windows,
in which drafts, shared corpus and caches fill, are left out: the shared corpus is made small for that.

`flat`: the last third of the windows costs within 15 % of the first third. A change that is larger, but within
the windows' own spread around a straight line, is `too noisy` to tell, and so is any run that spreads by more
than 30 %; other changes are `grows` and `falls`.
Memory is `flat` where a token adds at most 1 kB (its history and the index over it have to be kept), a short
request at most 1 kB as well, and neither adds Python objects or threads.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: idle threads must not spin

import torch

from benchmarks.documents import NESTED, Document, load_documents
from benchmarks.footprint import footprint
from benchmarks.soak_report import Run, Window, draw, judged, print_report
from benchmarks.soak_target import ScriptedAdapter, ScriptedTarget
from benchmarks.vocabularies import VOCABULARIES, load_vocabulary
from specgrammar.config import Config
from specgrammar.protocols.grammar import GrammarSpec, Vocabulary
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.sampling import MaskPolicyChoice

Setup = tuple[str, str, MaskPolicyChoice]
"""Backend, algorithm and mask policy."""
SETUPS: tuple[Setup, ...] = (
    ("xgrammar", "none", "eager"),
    ("llguidance", "none", "eager"),
    ("xgrammar", "ngram", "lazy"),
    ("llguidance", "ngram", "lazy"),
    ("xgrammar", "ngram", "eager"),
    ("llguidance", "ngram", "eager"),
    ("xgrammar", "none", "lazy"),
    ("llguidance", "none", "lazy"),
)
"""The first four hold each part twice: they are those of `--quick` and of the short requests."""

NUM_WINDOWS = 20

CORPUS_TOKENS = 1024
"""Capacity of the shared corpus of n-grams."""
SHORT_TOKENS = 16
"""Most tokens of a short request."""
NUM_FUNCTIONS = 12
"""Schemas of short requests. They are real functions', whose strings are bounded: xgrammar's backend compiles
others anew each time, for 0.2 s."""
STOP_STRINGS = ("\nObservation:", "</answer>")
"""No document has them, so that they are looked for at every token."""


@dataclass
class Bench:
    """One engine over a target that follows texts, and the time that it took, the target not counted.

    Attributes:
        steps: seconds of each step that decoded, compiling not counted.
        seconds: of all.
    """

    vocabulary: Vocabulary
    engine: Engine
    target: ScriptedTarget
    steps: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, setup: Setup, vocabulary: Vocabulary, bs: int) -> Bench:
        """A fresh engine for at most `bs` requests at once."""
        backend, algorithm, policy = setup
        options = {"capacity": CORPUS_TOKENS} if algorithm == "ngram" else {}
        config = Config(backend, {}, algorithm, options, mask_policy=policy, max_batch_size=bs)
        target = ScriptedTarget(vocabulary)
        return cls(vocabulary, Engine.build(config, ScriptedAdapter(target, vocabulary)), target)

    def add(self, request_id: str, schema: str, text: Sequence[int], num_tokens: int) -> None:
        """A request that writes `text`, up to `num_tokens` of it."""
        self.target.write(request_id, (*text, self.vocabulary.stop_ids[-1]))
        spec = GrammarSpec("json_schema", schema)
        prompt = text[:1]
        self.engine.add(
            Request(request_id, tuple(prompt), spec, max_new_tokens=num_tokens, stop_strings=STOP_STRINGS)
        )

    def step(self) -> list[RequestOutput]:
        """One step; where it decodes, its seconds without compiling go to `steps`."""
        trace = self.engine.trace
        num_steps, compiling, writing = trace.num_steps, trace.seconds["compile"], self.target.seconds
        begin = time.perf_counter()
        outputs = self.engine.step()
        spent = time.perf_counter() - begin - (self.target.seconds - writing)
        self.seconds += spent
        if trace.num_steps > num_steps:
            self.steps.append(spent - (trace.seconds["compile"] - compiling))
        for output in outputs:
            assert output.error is None, output.error
        return outputs

    def window(self, end: int, steps: Sequence[float], requests: Sequence[float] = ()) -> Window:
        """What a window of steps (and requests) took, and what the process holds behind it."""
        gc.collect()
        return Window(
            end,
            statistics.median(steps),
            statistics.fmean(steps),
            max(steps),
            statistics.median(requests) if requests else None,
            rss_bytes(),
            len(gc.get_objects()),
            threading.active_count(),
            sum(footprint(self.engine).values()),
        )


def long_requests(
    bench: Bench, documents: Sequence[Document], bs: int, num_tokens: int, window: int
) -> Iterator[Window]:
    """Requests that write arrays of objects until each of them has `num_tokens`."""
    schemas = list(dict.fromkeys(document.schema for document in documents))
    encode = bench.vocabulary.encode
    assert encode is not None
    for b in range(bs):
        schema = schemas[b % len(schemas)]
        text = encode("[")
        for document in documents:
            if document.schema == schema:
                text += [*document.tokens, *encode(", ")]
        assert len(text) > num_tokens, "more documents are needed"
        array = json.dumps({"type": "array", "items": json.loads(schema)})
        bench.add(f"long {b}", array, text, len(text))
    ledger = bench.engine._parts.ledger
    while len(ledger.entries) < bs:
        bench.step()
    for end in range(window, num_tokens + 1, window):
        while min(len(entry.session.output) for entry in ledger.entries.values()) < end:
            bench.step()
        yield bench.window(end, bench.steps)
        bench.steps.clear()


def short_requests(
    bench: Bench, documents: Sequence[Document], num_requests: int, window: int
) -> Iterator[Window]:
    """One request after the other."""
    requests: list[float] = []
    for number in range(1, num_requests + 1):
        document = documents[number % len(documents)]
        before = bench.seconds
        bench.add(f"short {number}", document.schema, document.tokens, SHORT_TOKENS)
        while bench.engine.has_work:
            bench.step()
        requests.append(bench.seconds - before)
        if number % window == 0:
            yield bench.window(number, bench.steps, requests)
            bench.steps.clear()
            requests.clear()


def rss_bytes() -> int:
    """The process's memory; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def run(vocabulary_name: str, num_long: int, bs: int, num_tokens: int, num_requests: int) -> list[Run]:
    """The first `num_long` setups with long requests, the first four with short ones."""
    vocabulary = load_vocabulary(vocabulary_name)
    documents = load_documents(vocabulary, len(NESTED) + NUM_FUNCTIONS, per_nested=max(100, num_tokens // 25))
    nested = {json.dumps(schema) for schema in NESTED.values()}
    functions = [document for document in documents if document.schema not in nested]
    documents = [document for document in documents if document.schema in nested]

    def long(bench: Bench) -> Iterator[Window]:
        return long_requests(bench, documents, bs, num_tokens, num_tokens // NUM_WINDOWS)

    def short(bench: Bench) -> Iterator[Window]:
        return short_requests(bench, functions, num_requests, num_requests // NUM_WINDOWS)

    drives: dict[str, Callable[[Bench], Iterator[Window]]] = {"long": long, "short": short}
    work = [("long", setup) for setup in SETUPS[:num_long]] + [("short", setup) for setup in SETUPS[:4]]
    runs = []
    for kind, setup in work:
        begin = time.perf_counter()
        gc.collect()
        gc.freeze()  # what is here already is neither collected nor counted in the windows
        at_once = bs if kind == "long" else 1
        bench = Bench.of(setup, vocabulary, at_once)
        runs.append(Run(kind, *setup, at_once, list(drives[kind](bench))))
        print(f"{runs[-1].name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    gc.unfreeze()
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer tokens, requests and setups")
    parser.add_argument("--vocabulary", choices=list(VOCABULARIES), default="smollm2")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all windows and verdicts")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw time over tokens and requests")
    options = parser.parse_args(argv)
    begin = time.perf_counter()
    torch.set_num_threads(1)
    try:
        if options.quick:
            runs = run(options.vocabulary, num_long=4, bs=1, num_tokens=3_000, num_requests=240)
        else:
            runs = run(options.vocabulary, num_long=8, bs=2, num_tokens=10_000, num_requests=1_200)
    except RuntimeError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    machine: dict[str, Any] = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "vocabulary": options.vocabulary,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print_report(runs, machine)
    if options.json is not None:
        report = {"machine": machine, "runs": [judged(run) for run in runs]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.png is not None:
        draw(options.png, runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
