"""`specgrammar model fetch`: get the default model ahead of time."""

from __future__ import annotations

import argparse
from typing import Any

from specgrammar.registry import ADAPTERS, find


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("model", help="the default model, SmolLM2-135M-Instruct")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="download, verify and convert it into the user's cache, once")
    fetch.add_argument("--verify", action="store_true", help="also hash every converted file again")
    fetch.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fetch and print the folder."""
    find(ADAPTERS, "transformers").load()  # says which extra is missing
    from specgrammar_transformers import fetch_default_model

    print(fetch_default_model(verify=arguments.verify))
    return 0
