"""Train an EAGLE-3 draft head for SmolLM2-135M-Instruct, from nothing but the model itself.

    python -m examples.train_eagle --out my-head

Prompts and schemas are generated, the target answers them under their grammars, and the head learns to draft
what the target said. Every stage is kept in the work folder: stop the command, give it again, and it goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.train_eagle.stages import Plan, export, make_answers, train_head
from examples.train_eagle.train import Recipe
from examples.train_eagle.workshop import Workshop
from specgrammar.errors import SpecGrammarError

FULL = Plan(8000, 384, 512, 160, 192, 0, Recipe(3000))
QUICK = Plan(8, 2, 4, 8, 24, 0, Recipe(3, num_positions=64, depth=2, warm_up=1))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m examples.train_eagle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the head")
    made.add_argument("--work", type=Path, metavar="DIR", help="folder for the stages (default: OUT/work)")
    made.add_argument(
        "--answers", type=int, metavar="N", help=f"training answers to make (default {FULL.num_answers})"
    )
    made.add_argument(
        "--updates", type=int, metavar="N", help=f"updates of the weights (default {FULL.recipe.num_updates})"
    )
    made.add_argument(
        "--begin",
        type=Path,
        metavar="HEAD",
        help="folder of a head to go on from with other data (default: a new head)",
    )
    made.add_argument(
        "--learning-rate",
        type=float,
        default=FULL.recipe.learning_rate,
        metavar="R",
        help="the highest, behind the warm-up (default %(default)s)",
    )
    made.add_argument("--seed", type=int, default=0, help="of the prompts and of the training (default 0)")
    made.add_argument("--quick", action="store_true", help="a minute's run that shows that everything works")
    return made


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that a command line asks for."""
    base = QUICK if options.quick else FULL
    num_updates = base.recipe.num_updates if options.updates is None else options.updates
    # A head that can draft already learns at every depth from the beginning.
    first_depth = base.recipe.first_depth if options.begin is None else base.recipe.depth
    changed = {"num_updates": num_updates, "seed": options.seed, "first_depth": first_depth}
    recipe = Recipe(**{**vars(base.recipe), **changed, "learning_rate": options.learning_rate})
    num_answers = base.num_answers if options.answers is None else options.answers
    return Plan(
        **{
            **vars(base),
            "num_answers": num_answers,
            "seed": options.seed,
            "recipe": recipe,
            "begin": options.begin,
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run all stages."""
    options = parser().parse_args(argv)
    plan = plan_of(options)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        workshop = Workshop(options.work or options.out / "work")
        held_out = make_answers(workshop, plan, "validation", report)
        shards = make_answers(workshop, plan, "train", report)
        head, log = train_head(workshop, plan, shards, held_out, report)
        export(head, log, options.out)
    except (SpecGrammarError, OSError) as error:
        print(f"train_eagle: {error}", file=sys.stderr)
        return 1
    report(f"the head is in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
