"""What drafting from n-grams costs the host in a step, beside sglang's C++ corpus at the same parameters.

    python -m benchmarks.ngram_host

Requests are in the middle of real documents, behind a warm corpus that other requests wrote. Every step inserts
what was committed, looks up, builds trees of 16 nodes and their links. All contenders see the same tokens, in
turns; the documents decide what is committed, so that the drafts' accept lengths compare at equal contexts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.ngram_texts import MOST_PER_STEP, NUM_NODES, Stream, Workload, accepted_lengths
from benchmarks.sglang_corpus import SglangNgram, SglangRequest
from benchmarks.vocabularies import VOCABULARIES
from specgrammar.protocols.spec import Commit, DecodeBatch, RequestView
from specgrammar.spec.ngram import NgramAlgorithm, NgramProducer
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import HostTree

BATCHES = (1, 8, 32, 128)
PHASES = ("insert", "tree", "links")

BREADTH, MAX_MATCH, DEPTH = 4, 4, 8


@dataclass(frozen=True)
class Measured:
    """One step of a contender: seconds of each phase, and what each request would have accepted."""

    seconds: dict[str, float]
    accepted: list[int]


class Contender(Protocol):
    """Someone who drafts: it is warmed up once, and meets each batch before its first step."""

    def join(self, streams: list[Stream]) -> None:
        """See the requests as they are, prompts included; not measured."""
        ...

    def step(self, streams: list[Stream], commits: list[list[int]]) -> Measured:
        """Insert what each stream has committed since the last step, and draft."""
        ...


class Ours:
    """`NgramProducer`, as the runtime calls it: `observe`, then `propose`."""

    def __init__(self, workload: Workload) -> None:
        """Requests write the warm texts, one after the other."""
        algorithm = NgramAlgorithm(
            num_draft_tokens=NUM_NODES - 1,
            breadth=BREADTH,
            depth=DEPTH,
            max_match=MAX_MATCH,
            capacity=workload.num_warm + 65_536,
        )
        self._producer = NgramProducer(algorithm)
        for number, text in enumerate(workload.warm):
            request_id = f"warm {number}"
            self._producer.propose(
                DecodeBatch(0, (RequestView(request_id, [text[0]], 0, 0, SamplingParams()),))
            )
            self._producer.observe([Commit(request_id, text[1:], 0, 0, finished=True)])
        self._tokens: list[list[int]] = []

    def join(self, streams: list[Stream]) -> None:
        """The prompt is in the history; what a request has written is its own and shared."""
        self._tokens = [stream.prompt + stream.output[: stream.position] for stream in streams]
        self._producer.propose(self._batch(streams))

    def step(self, streams: list[Stream], commits: list[list[int]]) -> Measured:
        """Links come with the tree; deriving them once more from its parents says what share they have."""
        committed = [
            Commit(stream.request_id, tuple(new), 0, 0, finished=False)
            for stream, new in zip(streams, commits, strict=True)
        ]
        for tokens, new in zip(self._tokens, commits, strict=True):
            tokens.extend(new)
        batch = self._batch(streams)
        begin = time.perf_counter()
        self._producer.observe(committed)
        observed = time.perf_counter()
        tree = self._producer.propose(batch)
        proposed = time.perf_counter()
        assert tree.host is not None
        parents = tree.host.parents()
        rebuilding = time.perf_counter()
        HostTree.from_parents(tree.host.cu_nodes, tree.host.draft_tokens, parents)
        links = time.perf_counter() - rebuilding
        seconds = {"insert": observed - begin, "tree": proposed - observed - links, "links": links}
        dense = tree.host.to_dense(NUM_NODES)
        return Measured(seconds, accepted_lengths(streams, *dense))

    def _batch(self, streams: list[Stream]) -> DecodeBatch:
        return DecodeBatch(
            0,
            tuple(
                RequestView(stream.request_id, tokens, len(stream.prompt), DEPTH, SamplingParams())
                for stream, tokens in zip(streams, self._tokens, strict=True)
            ),
        )


class Sglang:
    """sglang's worker: lookup, links on the host as for a grammar, insertion and the wait until it is done."""

    def __init__(self, workload: Workload, match_type: str) -> None:
        """Insert the warm texts; raises RuntimeError where the corpus can't be had."""
        trie_depth = MAX_MATCH + DEPTH
        capacity = (workload.num_warm + 65_536) * trie_depth
        self._ngram = SglangNgram(match_type, NUM_NODES, trie_depth, BREADTH, capacity)
        self._ngram.warm(workload.warm)
        self._requests: list[SglangRequest] = []

    def join(self, streams: list[Stream]) -> None:
        """What the requests have written so far is in the corpus; prompts are not inserted there."""
        self._ngram.warm([stream.output[: stream.position] for stream in streams])
        self._requests = [
            SglangRequest(stream.request_id, stream.prompt, stream.output[: stream.position])
            for stream in streams
        ]

    def step(self, streams: list[Stream], commits: list[list[int]]) -> Measured:
        """The insertion runs in a thread of its own; its time counts until it is done."""
        for request, new in zip(self._requests, commits, strict=True):
            request.output_ids.extend(new)
        begin = time.perf_counter()
        self._ngram.insert(self._requests)
        self._ngram.wait()
        inserted = time.perf_counter()
        drafts, mask = self._ngram.look_up(self._requests)
        found = time.perf_counter()
        next_token, next_sibling = self._ngram.links(mask, len(streams))
        linked = time.perf_counter()
        seconds = {"insert": inserted - begin, "tree": found - inserted, "links": linked - found}
        shape = (len(streams), NUM_NODES)
        return Measured(
            seconds, accepted_lengths(streams, drafts.reshape(shape), next_token.numpy(), next_sibling.numpy())
        )


@dataclass
class Cell:
    """A contender at a batch size: the median seconds of its phases and of their sum, and its accept length."""

    contender: str
    bs: int
    seconds: dict[str, float] = field(default_factory=dict)
    mean_accept_length: float = 0.0


def measure(contenders: dict[str, Contender], workload: Workload, bs: int, num_steps: int) -> Iterator[Cell]:
    """All contenders on one batch, step by step in random order; one step more is made before, to warm up."""
    streams = workload.streams(bs, num_steps)
    rng = random.Random(bs)
    for contender in contenders.values():
        contender.join(streams)
    measured = defaultdict(list)
    for number in range(-1, num_steps):
        commits = []
        for stream in streams:
            new = stream.output[stream.position :][: rng.randint(1, MOST_PER_STEP)]
            stream.position += len(new)
            commits.append(new)
        for name in rng.sample(list(contenders), len(contenders)):
            result = contenders[name].step(streams, commits)
            if number >= 0:
                measured[name].append(result)
    for name in contenders:
        results = measured[name]
        cell = Cell(name, bs)
        for phase in PHASES:
            cell.seconds[phase] = statistics.median(result.seconds[phase] for result in results)
        cell.seconds["sum"] = statistics.median(sum(result.seconds.values()) for result in results)
        cell.mean_accept_length = statistics.fmean(n for result in results for n in result.accepted)
        yield cell


def run(vocabulary: str, num_warm: int, batches: Sequence[int], num_steps: int) -> list[Cell]:
    """Measure every contender that can be had; the others are named on stderr, in a line each."""
    workload = Workload.load(vocabulary, num_warm, 4 * max(batches))
    print(f"{workload.num_warm} tokens warm the corpus", file=sys.stderr)
    contenders: dict[str, Contender] = {"ours": Ours(workload)}
    try:
        for match_type in ("BFS", "PROB"):
            contenders[f"sglang {match_type}"] = Sglang(workload, match_type)
    except RuntimeError as error:
        print(f"without sglang: {error}", file=sys.stderr)
    return [cell for bs in batches for cell in measure(contenders, workload, bs, num_steps)]


def print_table(cells: Sequence[Cell]) -> None:
    """Milliseconds a step; the ratio is the contender's sum over ours."""
    ours = {cell.bs: cell.seconds["sum"] for cell in cells if cell.contender == "ours"}
    head = (*PHASES, "sum", "over ours", "accept length")
    print(f"{'':>4} {'ms a step':<12}" + "".join(f"{name:>15}" for name in head))
    for cell in cells:
        figures = [f"{1e3 * cell.seconds[name]:.3f}" for name in (*PHASES, "sum")]
        figures += [f"{cell.seconds['sum'] / ours[cell.bs]:.2f}", f"{cell.mean_accept_length:.3f}"]
        print(f"{cell.bs:>4} {cell.contender:<12}" + "".join(f"{figure:>15}" for figure in figures))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ngram_host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a smaller corpus and fewer steps")
    parser.add_argument("--vocabulary", choices=list(VOCABULARIES), default="llama3")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all cells and the machine")
    options = parser.parse_args(argv)
    try:
        if options.quick:
            cells = run(options.vocabulary, 20_000, (1, 128), num_steps=20)
        else:
            cells = run(options.vocabulary, 200_000, BATCHES, num_steps=60)
    except RuntimeError as error:
        print(f"ngram_host: {error}", file=sys.stderr)
        return 1
    print_table(cells)
    if options.json is not None:
        machine: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count()}
        report = {"machine": machine, "cells": [asdict(cell) for cell in cells]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
