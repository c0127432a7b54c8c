"""`specgrammar tree`: the draft tree of one real step, in the terminal and as a picture."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from specgrammar.checks import show
from specgrammar.cli.flags import add_flags_of_one
from specgrammar.cli.generate import config_from, prepared
from specgrammar.cli.prompts import prompts_from
from specgrammar.cli.svg import write_svg
from specgrammar.cli.tree_model import ShownTree, State, shown_tree
from specgrammar.cli.tree_svg import draw_tree
from specgrammar.cli.tree_text import tree_lines, wants_colour
from specgrammar.errors import ConfigError

_DESCRIPTION = """Generate for one prompt and show the draft tree of one step: who drafted each token, and what
the grammar and the model made of it."""


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("tree", help="show the draft tree of a step", description=_DESCRIPTION)
    add_flags_of_one(command)
    add = command.add_argument_group("tree").add_argument
    add(
        "--step",
        metavar="N",
        type=int,
        help="which step, from 0 (default: the one with the most accepted drafts, of these the richest)",
    )
    add("--svg", metavar="FILE.svg", help="also draw it (default: do not)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Generate, then show; 1 if the request failed before a step."""
    config = config_from(arguments)
    if arguments.mask_policy is None:  # lazily masked rows know nothing of the nodes beside the path
        config = dataclasses.replace(config, mask_policy="eager")
    engine, adapter, requests = prepared(arguments, config, prompts_from(arguments))

    from specgrammar.runtime.draft_record import DraftRecorder

    engine.trace.recorder = recorder = DraftRecorder()
    outputs = list(engine.generate(requests))
    for output in outputs:
        if output.error is not None:
            print(f"specgrammar: error: request {output.request_id!r}: {output.error}", file=sys.stderr)
    trees = [shown_tree(step, 0, adapter.vocabulary) for step in recorder.steps()]
    if not trees:
        return 1
    tree = _selected(trees, arguments.step)
    print("\n".join(tree_lines(tree, wants_colour(sys.stdout))))
    if arguments.svg is not None:
        write_svg(arguments.svg, draw_tree(tree))
    return 0


def _selected(trees: Sequence[ShownTree], step: int | None) -> ShownTree:
    if step is None:
        return max(trees, key=lambda tree: (tree.num_in_state[State.ACCEPTED], tree.num_in_state.total()))
    if not 0 <= step < len(trees):
        raise ConfigError(f"--step = {show(step)}; this run had steps 0 to {len(trees) - 1}")
    return trees[step]
