"""What overlapping the grammar with the forward saves, on a real model and for forwards of a given time.

    python -m benchmarks.overlap
    python -m benchmarks.overlap --hidden     (the shares of `specgrammar trace`; see `benchmarks.hidden`)

*Real*: SmolLM2-135M-Instruct in float32 on the first BFCL prompts with their schemas, `ngram`, eager masks:
tokens per second on the device `cpu-stream` (forwards beside the host) over the same steps one after the other
(`inline`), in turns. Beside them the device `cpu`, which also cuts illegal drafts before the forward.

*Given*: a forward that takes 5, 10 or 20 ms on the stream, the 128k vocabulary of Llama-3, draft trees of 16
nodes. The bubble is the time from the end of the forward to a mask that is ready: with overlap the host builds
it under the forward, without it builds it behind. It is what a device would wait for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import hidden
from benchmarks.bfcl import load_bfcl
from benchmarks.columns import Eager, Rings
from benchmarks.documents import load_documents
from benchmarks.grammars import Grammars
from benchmarks.picture import load_pyplot
from benchmarks.scenes import Corpus, Scene
from benchmarks.vocabularies import load_vocabulary
from specgrammar.cli.table import table
from specgrammar.config import Config
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import CPU_STREAM, device_for
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request

REAL_BATCHES, BATCHES, FORWARDS_MS = (1, 4, 8, 16), (1, 8, 32, 128), (5.0, 10.0, 20.0)
NUM_NODES, NUM_STEPS, NUM_ROUNDS = 16, 25, 3


@dataclass(frozen=True)
class Real:
    """Tokens per second of a batch size on each device: medians of the rounds."""

    bs: int
    inline: float
    stream: float
    cpu: float
    equal: bool


@dataclass(frozen=True)
class Given:
    """Milliseconds that a device would wait for the mask, behind a forward of a given time: medians."""

    bs: int
    forward_ms: float
    bubble_ms: float
    bubble_overlapped_ms: float


def measure_real(adapters: dict[str, Any], batches: Sequence[int], num_rounds: int) -> list[Real]:
    """Generate for as many prompts as the batch has requests, on both devices in turns."""
    found = []
    for bs in batches:
        print(f"SmolLM2, batch {bs} ...", file=sys.stderr)
        entries = load_bfcl(limit=bs)
        speeds: dict[str, list[float]] = {name: [] for name in adapters}
        texts: dict[str, dict[str, str]] = {}
        for _ in range(num_rounds):
            for name, adapter in adapters.items():
                config = Config(algorithm="ngram", mask_policy="eager", max_batch_size=bs)
                engine = Engine.build(config, adapter)
                requests = [
                    Request(
                        entry.id,
                        tuple(adapter.encode_prompt(entry.prompt)),
                        GrammarSpec.json_schema(entry.schema),
                        max_new_tokens=256,
                    )
                    for entry in entries
                ]
                outputs = list(engine.generate(requests))
                decoding = sum(engine.trace.seconds.values())
                decoding -= engine.trace.seconds["compile"] + engine.trace.seconds["prefill"]
                speeds[name].append(sum(len(output.token_ids) for output in outputs) / decoding)
                texts[name] = {output.request_id: output.text for output in outputs}
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        equal = all(other == texts[hidden.INLINE] for other in texts.values())
        found.append(Real(bs, medians[hidden.INLINE], medians[CPU_STREAM], medians[hidden.CPU], equal))
    return found


def measure_given(scene: Scene, grammars: Grammars, forward_ms: float, num_steps: int) -> Given:
    """Build the scene's mask behind a forward, and under it."""
    stream, workers = CpuStream(), FillWorkers()
    build = Eager("xgrammar", Rings(), workers).builder(scene, grammars)

    def pass_time() -> float:
        time.sleep(forward_ms / 1e3)
        return time.perf_counter()

    def step(overlapped: bool) -> float:
        forward = stream.launch(pass_time, "forward")
        if not overlapped:
            forward.wait()
        mask = build()
        mask.upload()
        ready = time.perf_counter()
        bubble = max(0.0, ready - forward.wait())
        mask.discard()
        return bubble

    for _ in range(10):
        step(False)
    turns = [(step(False), step(True)) for _ in range(num_steps)]
    stream.close()
    behind, under = (1e3 * statistics.median(values) for values in zip(*turns, strict=True))
    return Given(scene.bs, forward_ms, behind, under)


def draw(path: Path, given: Sequence[Given]) -> None:
    """Draw the bubbles over the batch; says so where there is no matplotlib."""
    pyplot = load_pyplot()
    if pyplot is None:
        return
    figure, axis = pyplot.subplots(figsize=(7, 5))
    for forward_ms in dict.fromkeys(cell.forward_ms for cell in given):
        cells = [cell for cell in given if cell.forward_ms == forward_ms]
        batches = [cell.bs for cell in cells]
        axis.plot(batches, [c.bubble_ms for c in cells], "--o", label=f"behind a forward of {forward_ms:g} ms")
        axis.plot(batches, [c.bubble_overlapped_ms for c in cells], "-o", label=f"under {forward_ms:g} ms")
    axis.set(
        xscale="log", xlabel="requests of 16 nodes", ylabel="bubble, ms", title="the device waits for the mask"
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both; 1 if a text differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="batches 1 and 4 of the model, 1 and 32 of the others"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures")
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw the bubbles (needs matplotlib)")
    parser.add_argument(
        "--hidden", action="store_true", help="instead record both devices in turns, and show what was hidden"
    )
    hidden.add_flags(parser)
    options = parser.parse_args(argv)
    if options.hidden:
        return hidden.run(options)
    grammars = Grammars(load_vocabulary("llama3"))
    corpus = Corpus(load_documents(grammars.vocabulary, 10), grammars.vocabulary.stop_ids[-1])
    given = []
    for bs in (1, 32) if options.quick else BATCHES:
        print(f"given forwards, batch {bs} ...", file=sys.stderr)
        scene = corpus.make_scene("ngram", bs, NUM_NODES)
        given += [measure_given(scene, grammars, forward_ms, NUM_STEPS) for forward_ms in FORWARDS_MS]
    from specgrammar_transformers import TransformersAdapter, fetch_default_model, load_model

    batches = REAL_BATCHES[:2] if options.quick else REAL_BATCHES
    model, tokenizer = load_model(fetch_default_model(), hidden.CPU, "float32")
    devices = {
        hidden.INLINE: hidden.InlineStream(),
        CPU_STREAM: device_for(CPU_STREAM),
        hidden.CPU: device_for(hidden.CPU),
    }
    adapters = {
        name: TransformersAdapter(model, tokenizer, max(batches), device) for name, device in devices.items()
    }
    real = measure_real(adapters, batches, 1 if options.quick else NUM_ROUNDS)
    print("\nThe device waits for the mask, ms a step (median)")
    rows = [(c.bs, c.forward_ms, f"{c.bubble_ms:.2f}", f"{c.bubble_overlapped_ms:.2f}") for c in given]
    print(table(["batch", "forward ms", "built behind the forward", "built under it"], rows))
    print("\nSmolLM2-135M-Instruct, decoding, tokens per second")
    lines = [
        (
            *(c.bs, f"{c.inline:.1f}", f"{c.stream:.1f}", f"{c.stream / c.inline:.3f}", f"{c.cpu:.1f}"),
            "yes" if c.equal else "NO",
        )
        for c in real
    ]
    print(table(["batch", "inline", "cpu-stream", "over inline", "cpu", "equal text"], lines))
    if options.json is not None:
        report = {"given": [asdict(cell) for cell in given], "real": [asdict(cell) for cell in real]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.png is not None:
        draw(options.png, given)
    return int(not all(cell.equal for cell in real))


if __name__ == "__main__":
    sys.exit(main())
