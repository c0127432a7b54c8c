"""`specgrammar check`: whether a plugin keeps its contract, clause by clause."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from specgrammar.cli.options import parse_options
from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.registry import ADAPTERS, ALGORITHMS, BACKENDS, create, find

if TYPE_CHECKING:
    from specgrammar.testing.checks.base import Checks
    from specgrammar.testing.checks.report import Outcome
    from specgrammar.testing.world import World

_DESCRIPTION = """Run the conformance kit on an installed plugin. Each check is one clause of the contract; one
that is broken is shown with the invariant behind it and the smallest example. The status is 1 if any is.

A backend is played against a slow reference. An algorithm decodes in a toy world, where every schedule of a
device can be tried; one that needs a real model decodes with an adapter's. An adapter's target is asked for
small trees."""

_MAX_BATCH_SIZE = 4
_GROUPS = {"backend": BACKENDS, "algorithm": ALGORITHMS, "adapter": ADAPTERS}


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "check",
        help="check that a plugin keeps its contract",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("kind", choices=tuple(_GROUPS), help="what it is")
    add("name", metavar="NAME", help="as `specgrammar plugins` lists it")
    add(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the backend or algorithm; repeatable (default: none)",
    )
    add(
        "--adapter",
        metavar="NAME",
        help="check an algorithm on this adapter's model instead of in the toy world (default: transformers "
        "for an algorithm that refuses the toy model)",
    )
    add("--model", metavar="PATH", help="the adapter's model (default: the adapter's own)")
    add(
        "--only",
        metavar="CHECK",
        action="append",
        default=[],
        help="run this check alone; repeatable (default: all)",
    )
    add("--list", action="store_true", help="list the checks and their clauses, and run none")
    add(
        "--output",
        choices=("text", "json"),
        default="text",
        help="a line a check, or a JSON object a line (default: %(default)s)",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check a plugin; 1 if a clause is broken."""
    lists = _lists(arguments.kind)
    _refuse_unknown(arguments.only, lists)
    if arguments.list:
        _print_list(lists)
        return 0
    begin, verdicts = time.perf_counter(), Counter[str]()
    outcomes = _outcomes(arguments, lists)
    while (outcome := _quietly(outcomes)) is not None:
        verdicts[outcome.verdict] += 1
        print(
            json.dumps(dataclasses.asdict(outcome)) if arguments.output == "json" else outcome.text(),
            flush=True,
        )
    if arguments.output == "text":
        print(_summary(f"{arguments.kind} {arguments.name}", verdicts, time.perf_counter() - begin))
    return int(verdicts["broken"] > 0)


def _quietly(outcomes: Iterator[Outcome]) -> Outcome | None:
    """The next outcome; what a plugin prints meanwhile is no part of the output."""
    with contextlib.redirect_stdout(sys.stderr):
        return next(outcomes, None)


def _lists(kind: str) -> tuple[Checks, ...]:
    try:
        from specgrammar import testing
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the conformance kit needs {error.name}: pip install 'specgrammar[testing]'"
        ) from error
    if kind == "backend":
        return testing.BACKEND_CHECKS, testing.MATCHER_CHECKS, testing.MASK_CHECKS, testing.ABILITY_CHECKS
    if kind == "algorithm":
        return testing.PRODUCER_CHECKS, testing.WORKER_CHECKS
    return (testing.TARGET_CHECKS,)


def _refuse_unknown(only: list[str], lists: tuple[Checks, ...]) -> None:
    from specgrammar.testing.checks.report import refuse_unknown

    refuse_unknown(only, lists)


def _print_list(lists: tuple[Checks, ...]) -> None:
    from specgrammar.testing.checks.report import clause

    for checks in lists:
        for check in checks:
            print(f"{check.__name__}  (invariant {checks.invariants[check.__name__]})\n  {clause(check)}")


def _outcomes(arguments: argparse.Namespace, lists: tuple[Checks, ...]) -> Iterator[Outcome]:
    """Run all lists on the plugin that the arguments name."""
    from specgrammar.testing.checks.report import run_checks

    make, given = _made(arguments)
    for checks in lists:
        own = [check.__name__ for check in checks if check.__name__ in arguments.only]
        if own or not arguments.only:
            yield from run_checks(checks, make, only=own, **given)


def _made(arguments: argparse.Namespace) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The factory that the checks of a kind take, and what they take besides."""
    group, name, options = _GROUPS[arguments.kind], arguments.name, parse_options(arguments.option)
    loaded: Any = None if "+" in name else find(group, name).load()  # says what is wrong with it
    if arguments.kind == "adapter":
        if options or arguments.adapter:
            raise ConfigError("--option and --adapter are not for adapters; an adapter takes --model")
        return cache(partial(_load, loaded, arguments.model)), {}  # its requests leave with each check
    # Impossible options are an error here, not a broken contract.
    if arguments.kind == "backend":
        if arguments.adapter or arguments.model:
            raise ConfigError("--adapter and --model are not for backends, which need no model; drop them")
        from specgrammar.testing.toys import VOCABULARY

        create(group, name, VOCABULARY, **options)
        return lambda vocabulary: create(group, name, vocabulary, **options), {}
    create(group, name, **options)
    make = partial(create, group, name, **options)
    return make, {"world": _world(arguments, make)}


def _world(arguments: argparse.Namespace, make: Callable[[], Any]) -> World:
    """The toy world, or one around a model: where that is asked for, or the algorithm refuses the toy."""
    from specgrammar.testing.world import TOY_WORLD, adapter_world

    name = arguments.adapter
    if name is None:
        refusal = "" if arguments.model else TOY_WORLD.refusal(make)
        if not arguments.model and not refusal:
            return TOY_WORLD
        name = "transformers"
        if refusal:
            print(
                f"not in the toy world ({refusal}), but on the model of {name!r}:", file=sys.stderr, flush=True
            )
    adapter = _load(find(ADAPTERS, name).load(), arguments.model, device="cpu-stream")
    backend = create(BACKENDS, Config.backend, adapter.vocabulary)
    return adapter_world(adapter, backend, adapter.encode_prompt)


def _load(adapter: Any, model: str | None, device: str = "cpu") -> Any:
    """A model in float32, in which equal outputs can be asked for."""
    return adapter.load(model, device=device, dtype="float32", max_batch_size=_MAX_BATCH_SIZE)


def _summary(name: str, verdicts: Counter[str], seconds: float) -> str:
    skipped = f", {verdicts['skipped']} skipped" if verdicts["skipped"] else ""
    ran = verdicts.total() - verdicts["skipped"]
    found = f"breaks {verdicts['broken']} of {ran}" if verdicts["broken"] else f"keeps all {ran}"
    return f"{name} {found} clauses of its contract{skipped} ({seconds:.1f} s)"
