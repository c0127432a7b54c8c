"""`python -m benchmarks.overlap --hidden`: what of the grammar's work a CPU stream hides, on SmolLM2 and BFCL.

Records a `cpu-stream` and the same steps without overlap in turns (see `benchmarks.turns`), eagerly masked, and
prints what `specgrammar trace` makes of the recordings. With `--against cpu` it is the device `cpu`, which also
cuts illegal drafts before the forward.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.bfcl import load_bfcl
from benchmarks.turns import record
from specgrammar.cli.generate import config_from
from specgrammar.cli.main import main as specgrammar
from specgrammar.protocols.staging import Device
from specgrammar.runtime.device import CPU_STREAM, InlineDevice, device_for

CPU, INLINE = "cpu", "inline"


class InlineStream(InlineDevice):
    """A stream that has done its work when a launch returns: a stream's steps and trees without overlap."""

    runs_aside = True


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what only --hidden reads."""
    add = parser.add_argument_group("with --hidden").add_argument
    add(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("hidden"),
        help="for the recordings (default: %(default)s)",
    )
    add("--repeats", metavar="N", type=int, default=10, help="recordings of a device (default: %(default)s)")
    add("--turn", metavar="N", type=int, default=10, help="steps of a device at a time (default: %(default)s)")
    add("--prompts", metavar="N", type=int, default=8, help="BFCL's first entries (default: %(default)s)")
    add("--batch-size", metavar="N", type=int, default=4, help="requests in a step (default: %(default)s)")
    add(
        "--threads",
        metavar="N",
        type=int,
        default=1,
        help="torch's; as many as there are cores leave the host none of its own (default: %(default)s)",
    )
    add(
        "--against",
        choices=(INLINE, CPU),
        default=INLINE,
        help="the same steps without overlap, or the device `cpu` (default: %(default)s)",
    )
    add("--model", metavar="PATH", help="a local model folder (default: SmolLM2-135M-Instruct)")
    add("--dtype", default="bfloat16", help="of the weights (default: %(default)s)")
    for kind, name in (("algorithm", "ngram"), ("backend", None)):
        add(f"--{kind}", metavar="NAME", default=name, help="see `specgrammar generate --help`")
        add(f"--{kind}-option", metavar="KEY=VALUE", action="append", default=[], help="likewise; repeatable")
    parser.set_defaults(config=None, budget=None, acceptance=None, mask_policy="eager")


def run(options: argparse.Namespace) -> int:
    """Record and print; 1 if a text differs."""
    from specgrammar_transformers import TransformersAdapter, fetch_default_model, load_model

    config = config_from(options)
    model, tokenizer = load_model(options.model or fetch_default_model(), CPU, options.dtype, options.threads)
    against: Device = InlineStream() if options.against == INLINE else device_for(CPU)
    devices = {CPU_STREAM: device_for(CPU_STREAM), options.against: against}
    adapters = {
        name: TransformersAdapter(model, tokenizer, config.max_batch_size, device)
        for name, device in devices.items()
    }
    recordings, equal = record(
        adapters,
        config,
        load_bfcl(limit=options.prompts),
        options.repeats,
        options.turn,
        {"dtype": options.dtype, "threads": options.threads},
    )
    options.out.mkdir(parents=True, exist_ok=True)
    paths: dict[str, list[str]] = {}
    for name, repeats in recordings.items():
        paths[name] = [str(options.out / f"{name}.{number:03}.json") for number in range(len(repeats))]
        for path, timeline in zip(paths[name], repeats, strict=True):
            timeline.save(path)
    status = specgrammar(["trace", *paths[CPU_STREAM], "--against", *paths[options.against]])
    print(f"texts equal: {'yes' if equal else 'NO'}")
    files = f"{options.out}/{CPU_STREAM}.*.json --against {options.out}/{options.against}.*.json"
    print(f"again: specgrammar trace {files}")
    return status or int(not equal)
