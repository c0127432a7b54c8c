"""`specgrammar generate`: prompts to constrained text."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from specgrammar.checks import show
from specgrammar.cli.prompts import Prompt, prompts_from
from specgrammar.cli.report import print_output, print_summary
from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.grammar.stops import StopRules
from specgrammar.registry import ADAPTERS, find
from specgrammar.spec.sampling import SamplingParams

if TYPE_CHECKING:
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
    add = command.add_argument
    prompts = command.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument(
        "--prompts",
        metavar="FILE.jsonl",
        help='a line: {"id", "prompt", and at most one of "schema", "regex", "grammar", "choice"}',
    )
    constraint = command.add_mutually_exclusive_group()
    constraint.add_argument("--json-schema", metavar="FILE|TEXT", help="JSON that is valid against a schema")
    constraint.add_argument("--json", action="store_true", help="any JSON object")
    constraint.add_argument("--regex", metavar="PATTERN", help="text that the whole pattern matches")
    constraint.add_argument("--grammar", metavar="FILE|TEXT", help="EBNF (root ::= ...) or Lark (start: ...)")
    constraint.add_argument("--choice", metavar="TEXT", nargs="+", help="one of these strings")
    add("--whitespace", choices=("spaced", "compact", "flexible"), default="spaced", help="separators in JSON")
    add("--allow-weakened", action="store_true", help="report schema keywords that are not enforced, go on")

    add("--config", metavar="FILE.toml", help="backend, algorithm and their options; flags override it")
    add("--backend", metavar="NAME", help="grammar backend: xgrammar, llguidance, or a plugin's")
    add("--algorithm", metavar="NAME", help="none, ngram, chain, or a plugin's")
    add("--backend-option", metavar="KEY=VALUE", action="append", default=[], help="repeatable")
    add("--algorithm-option", metavar="KEY=VALUE", action="append", default=[], help="repeatable")
    add("--acceptance", choices=("target_only", "rejection"), help="how sampled drafts are verified")
    add("--batch-size", metavar="N", type=int, help="most requests in one step")

    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0, help="0 keeps all")
    add("--min-p", type=float, default=0.0)
    add("--seed", type=int, default=0, help="same seed, same tokens, whatever the algorithm")
    add("--max-new-tokens", metavar="N", type=int, default=256)
    add("--stop", metavar="TEXT", action="append", default=[], help="end before this text; repeatable")
    add("--logprobs", action="store_true", help="report each token's log-probability (JSON output)")
    add("--raw-prompt", action="store_true", help="do not wrap the prompt in the model's chat template")

    add("--model", metavar="PATH", help="a local Hugging Face model folder")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    add("--output", choices=("text", "json"), default="text")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Generate; 1 if any request failed."""
    config = config_from(arguments)
    sampling = SamplingParams(
        arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.seed
    )
    # Refused here, before a model is loaded.
    stops = StopRules(stop_strings=tuple(arguments.stop), max_new_tokens=arguments.max_new_tokens)
    prompts = prompts_from(arguments)
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
    requests = [_request(prompt, sampling, stops, arguments, adapter) for prompt in prompts]
    begin = time.perf_counter()
    outputs = list(_shown(engine.generate(requests), prompts, arguments))
    print_summary(outputs, engine.trace, config, time.perf_counter() - begin, arguments.output)
    return int(any(output.finish_reason == "error" for output in outputs))


def config_from(arguments: argparse.Namespace) -> Config:
    """The configuration file's values, overridden by flags."""
    base = Config.from_file(arguments.config) if arguments.config else Config()
    values: dict[str, Any] = {
        "backend": arguments.backend or base.backend,
        "algorithm": arguments.algorithm or base.algorithm,
        "acceptance": arguments.acceptance or base.acceptance,
        "max_batch_size": base.max_batch_size if arguments.batch_size is None else arguments.batch_size,
        "compile_timeout_s": base.compile_timeout_s,
    }
    # Options belong to the plugin that they were written for.
    same_backend, same_algorithm = values["backend"] == base.backend, values["algorithm"] == base.algorithm
    values["backend_options"] = (dict(base.backend_options) if same_backend else {}) | _options(
        arguments.backend_option
    )
    values["algorithm_options"] = (dict(base.algorithm_options) if same_algorithm else {}) | _options(
        arguments.algorithm_option
    )
    return Config.from_dict(values)


def _options(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` with TOML values; what is not TOML is a string."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"option {show(pair)}: expected KEY=VALUE")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 1,000 brackets
            raise ConfigError(f"option {show(pair)}: {error}") from error
    return options


def _request(
    prompt: Prompt, sampling: SamplingParams, stops: StopRules, arguments: argparse.Namespace, adapter: Any
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
