"""The flags of `specgrammar generate` and `tree`, each with its unit and what holds without it."""

from __future__ import annotations

import argparse

from specgrammar.config import Config
from specgrammar.spec.sampling import SamplingParams


def add_flags(command: argparse.ArgumentParser) -> None:
    """Add all, in groups as `--help` shows them."""
    for add_group in (_add_prompts, _add_constraint, _add_plugins, _add_sampling, _add_model, _add_output):
        add_group(command)


def add_flags_of_one(command: argparse.ArgumentParser) -> None:
    """Add those of a command that runs one prompt and prints something else than its text."""
    command.add_argument("--prompt", metavar="TEXT", required=True, help="the prompt")
    for add_group in (_add_constraint, _add_plugins, _add_sampling, _add_model):
        add_group(command)
    command.set_defaults(prompts=None, logprobs=False)


def _add_prompts(command: argparse.ArgumentParser) -> None:
    prompts = command.add_argument_group("prompts").add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="one prompt")
    prompts.add_argument(
        "--prompts",
        metavar="FILE.jsonl",
        help='a JSON object a line: {"id", "prompt", and at most one of "schema", "regex", "grammar", "choice"}'
        "; a line's own grammar wins over the flags', which hold for lines without one",
    )


def _add_constraint(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("constraint", "At most one; without any the text is free.")
    add = group.add_mutually_exclusive_group().add_argument
    add("--json-schema", metavar="FILE|TEXT", help="JSON that is valid against a schema")
    add("--json", action="store_true", help="any JSON object")
    add("--regex", metavar="PATTERN", help="text that the whole pattern matches")
    add("--grammar", metavar="FILE|TEXT", help="EBNF (root ::= ...) or Lark (start: ...)")
    add("--choice", metavar="TEXT", nargs="+", help="one of these strings")
    add = group.add_argument
    add(
        "--whitespace",
        choices=("spaced", "compact", "flexible"),
        default="spaced",
        help='between the tokens of JSON: spaced is {"a": [1, 2]}, compact is {"a":[1,2]}, flexible leaves it '
        "to the model (default: %(default)s)",
    )
    add(
        "--allow-weakened",
        action="store_true",
        help="report schema keywords that are not enforced and go on (default: refuse such a schema)",
    )
    starts = {
        "after": "the grammar begins behind this text, such as </think>; until then the text is free",
        "at": "the grammar begins with this text, which is its own beginning, such as a tool call's",
        "reset": "read the prompt, too: a --grammar-after behind its last TEXT, such as <think>, has been",
    }
    for name, meaning in starts.items():
        add(
            f"--grammar-{name}",
            metavar="TEXT",
            action="append",
            default=[],
            help=f"{meaning}; repeatable (default: the grammar begins at once)",
        )


def _add_plugins(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("grammar backend and speculation").add_argument
    add("--config", metavar="FILE.toml", help="the settings of this group (default: none); flags override it")
    add(
        "--backend",
        metavar="NAME",
        help=f"grammar backend: xgrammar, llguidance, or a plugin's (default: {Config.backend})",
    )
    add(
        "--algorithm",
        metavar="NAME",
        help="how tokens are drafted: none (ordinary decoding), ngram, forced, chain, eagle, a plugin's, or "
        "several in one tree, as forced+ngram "
        f"(default: {Config.algorithm})",
    )
    for kind in ("backend", "algorithm"):
        add(
            f"--{kind}-option",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help=f"an option of the {kind}, as `specgrammar plugins` lists them; repeatable (default: none)",
        )
    add(
        "--budget",
        metavar="auto|N",
        help="draft tokens that a step verifies for a request on average, the likeliest: a number, or auto for "
        "as many as pay for themselves by measured costs (default: all that are drafted; auto where several "
        "algorithms draft)",
    )
    add(
        "--acceptance",
        choices=("target_only", "rejection"),
        help="how sampled drafts are verified: target_only gives the same tokens whatever the algorithm, "
        f"rejection the same distribution (default: {Config.acceptance})",
    )
    add(
        "--mask-policy",
        choices=("eager", "lazy", "auto"),
        help="when the grammar is asked: eager masks every row before the draw, lazy draws first and masks "
        "where the choice is illegal, auto measures; the tokens are the same "
        f"(default: {Config.mask_policy})",
    )
    add(
        "--batch-size",
        metavar="N",
        type=int,
        help=f"most requests in one step (default: {Config.max_batch_size})",
    )


def _add_sampling(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("sampling").add_argument
    add(
        "--temperature",
        metavar="T",
        type=float,
        default=SamplingParams.temperature,
        help="divides the logits; 0 takes the most probable token (default: %(default)s)",
    )
    add(
        "--top-p",
        metavar="P",
        type=float,
        default=SamplingParams.top_p,
        help="keep the most probable tokens whose probabilities reach P, above 0 and at most 1, which keeps "
        "all (default: %(default)s)",
    )
    add(
        "--top-k",
        metavar="K",
        type=int,
        default=SamplingParams.top_k,
        help="keep the K most probable tokens; 0 keeps all (default: %(default)s)",
    )
    add(
        "--min-p",
        metavar="P",
        type=float,
        default=SamplingParams.min_p,
        help="keep tokens with at least the share P of the most probable one's probability, 0 to 1; 0 keeps "
        "all (default: %(default)s)",
    )
    add(
        "--seed",
        metavar="N",
        type=int,
        default=SamplingParams.seed,
        help="same seed, same tokens, whatever the algorithm (default: %(default)s)",
    )
    add(
        "--max-new-tokens",
        metavar="N",
        type=int,
        default=256,
        help="most tokens to generate for a prompt (default: %(default)s tokens)",
    )
    add(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end before this text; repeatable (default: none)",
    )


def _add_model(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("model").add_argument
    add(
        "--model",
        metavar="PATH",
        help="a local Hugging Face model folder (default: SmolLM2-135M-Instruct)",
    )
    add(
        "--device",
        default="auto",
        help="cpu, cpu-stream (the model runs beside the grammar on a thread of its own), cuda, cuda:1, or "
        "auto: CUDA where there is a device, else cpu (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights; auto is the model's own (default: %(default)s)",
    )
    add(
        "--raw-prompt",
        action="store_true",
        help="give the model the prompt as it stands (default: in the model's chat template)",
    )


def _add_output(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("output").add_argument
    add(
        "--logprobs",
        action="store_true",
        help="report each token's natural log-probability, in JSON output (default: do not)",
    )
    add(
        "--output",
        choices=("text", "json"),
        default="text",
        help="the texts alone, or a JSON object a prompt and a summary (default: %(default)s)",
    )
    add(
        "--trace",
        metavar="FILE.json",
        help="record when host and device did what, for `specgrammar trace` and Perfetto (default: do not)",
    )
