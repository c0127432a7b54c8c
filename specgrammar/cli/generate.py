"""`specgrammar generate`: prompts to constrained text."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from specgrammar.checks import show
from specgrammar.cli.flags import add_flags
from specgrammar.cli.options import parse_options
from specgrammar.cli.prompts import Prompt, prompts_from
from specgrammar.cli.recording import check_trace_path, recording
from specgrammar.cli.report import print_output, print_summary
from specgrammar.cli.start import check_start, start_of
from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.stops import StopRules
from specgrammar.registry import ADAPTERS, find
from specgrammar.spec.sampling import SamplingParams

if TYPE_CHECKING:
    from specgrammar.runtime.engine import Engine
    from specgrammar.runtime.request import Request, RequestOutput

_DESCRIPTION = """Generate text that follows a grammar, with or without speculation.

Without --model the default model SmolLM2-135M-Instruct is used; it is fetched once."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "generate",
        help="generate constrained text",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Generate; 1 if any request failed."""
    check_trace_path(arguments.trace)
    prompts = prompts_from(arguments)
    engine, adapter, requests = prepared(arguments, config_from(arguments), prompts)
    begin = time.perf_counter()
    with recording(arguments.trace, engine, adapter):
        outputs = list(_shown(engine.generate(requests), prompts, arguments))
    print_summary(outputs, engine, engine.config, time.perf_counter() - begin, arguments.output)
    return int(any(output.finish_reason == "error" for output in outputs))


def prepared(
    arguments: argparse.Namespace, config: Config, prompts: list[Prompt]
) -> tuple[Engine, Any, list[Request]]:
    """An engine, its adapter and the requests; what can be refused is, before a model is loaded."""
    sampling = SamplingParams(
        arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.seed
    )
    stops = StopRules(stop_strings=tuple(arguments.stop), max_new_tokens=arguments.max_new_tokens)
    check_start(arguments, prompts)
    config = dataclasses.replace(config, max_batch_size=min(config.max_batch_size, len(prompts)))
    load_adapter = find(ADAPTERS, "transformers").load()

    from specgrammar.runtime.engine import Engine

    adapter = load_adapter.load(  # type: ignore[attr-defined]  # the registry has checked that it has `load`
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        max_batch_size=config.max_batch_size,
    )
    engine = Engine.build(config, adapter)
    start = start_of(arguments, adapter)
    return engine, adapter, [_request(prompt, sampling, stops, start, arguments, adapter) for prompt in prompts]


def config_from(arguments: argparse.Namespace) -> Config:
    """The configuration file's values, overridden by flags."""
    base = Config.from_file(arguments.config) if arguments.config else Config()
    values: dict[str, Any] = {
        "backend": arguments.backend or base.backend,
        "algorithm": arguments.algorithm or base.algorithm,
        "budget": base.budget if arguments.budget is None else budget_from(arguments.budget),
        "acceptance": arguments.acceptance or base.acceptance,
        "mask_policy": arguments.mask_policy or base.mask_policy,
        "max_batch_size": base.max_batch_size if arguments.batch_size is None else arguments.batch_size,
    }
    # Options belong to the plugin that they were written for.
    same_backend, same_algorithm = values["backend"] == base.backend, values["algorithm"] == base.algorithm
    values["backend_options"] = (dict(base.backend_options) if same_backend else {}) | parse_options(
        arguments.backend_option
    )
    values["algorithm_options"] = (dict(base.algorithm_options) if same_algorithm else {}) | parse_options(
        arguments.algorithm_option
    )
    return dataclasses.replace(base, **values)


def budget_from(text: str) -> int | Literal["auto"]:
    """The value of `--budget`; raises ConfigError for what is no budget."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--budget = {show(text)}; expected auto, or a number of draft tokens") from None


def _request(
    prompt: Prompt,
    sampling: SamplingParams,
    stops: StopRules,
    start: Markers | None,
    arguments: argparse.Namespace,
    adapter: Any,
) -> Request:
    from specgrammar.runtime.request import Request

    encode = adapter.encode_raw if arguments.raw_prompt else adapter.encode_prompt
    return Request(
        prompt.id,
        tuple(encode(prompt.text)),
        prompt.grammar,
        sampling,
        arguments.max_new_tokens,
        stops.stop_strings,
        grammar_start=() if start is None or prompt.grammar is None else start,
        logprobs=arguments.logprobs,
    )


def _shown(
    outputs: Iterable[RequestOutput], prompts: list[Prompt], arguments: argparse.Namespace
) -> Iterator[RequestOutput]:
    """Print outputs in the prompts' order, each as soon as all before it are done."""
    from tqdm import tqdm

    done: dict[str, RequestOutput] = {}
    order = [prompt.id for prompt in prompts]
    printed = 0
    progress = tqdm(
        total=len(prompts), unit="prompt", file=sys.stderr, disable=None if len(order) > 1 else True
    )
    with progress:
        for output in outputs:
            done[output.request_id] = output
            progress.update()
            while printed < len(order) and order[printed] in done:
                print_output(done[order[printed]], arguments.output)
                yield done[order[printed]]
                printed += 1
