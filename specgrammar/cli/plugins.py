"""`specgrammar plugins`: what is installed, what checks it, what it can do, and why one cannot be used.

Native code, which is no plugin, is the last row.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from specgrammar import __version__
from specgrammar.cli.table import table
from specgrammar.errors import SpecGrammarError
from specgrammar.native.library import why_no_core
from specgrammar.protocols.grammar import ALL_KINDS
from specgrammar.protocols.spec import supports_grammar_overlap
from specgrammar.registry import ALGORITHMS, BACKENDS, GROUPS, Plugin, option_names, plugins


def add_parser(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser("plugins", help="list backends, algorithms and adapters")
    command.add_argument(
        "--output", choices=("text", "json"), default="text", help="a table, or JSON lines (default: text)"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List every plugin and native code; what cannot be used is a line, not a failure."""
    rows = [*(describe(plugin) for group in GROUPS for plugin in plugins(group)), native_walks()]
    if arguments.output == "json":
        for row in rows:
            print(json.dumps(row))
    else:
        columns = ("kind", "name", "distribution", "check", "state", "abilities")
        print(table(columns, [[row[column] for column in columns] for row in rows]))
    return 0


def describe(plugin: Plugin) -> dict[str, str]:
    """One plugin as a row; it is loaded to see whether it can be."""
    try:
        state, abilities = "available", _abilities(plugin, plugin.load())
    except SpecGrammarError as error:
        state, abilities = f"unavailable: {error}", ""
    except Exception as error:  # whatever a plugin raises that is asked for its abilities
        state, abilities = f"not without options: {type(error).__name__}: {error}", ""
    return {
        "kind": plugin.group.kind,
        "name": plugin.name,
        "target": plugin.target,
        "distribution": plugin.distribution,
        "check": f"specgrammar check {plugin.group.kind} {plugin.name}",
        "state": state,
        "abilities": abilities,
    }


def native_walks() -> dict[str, str]:
    """Whether grammars are walked by native code as a row, and why not."""
    try:
        reason = why_no_core()
    except SpecGrammarError as error:
        reason = str(error)
    return {
        "kind": "native code",
        "name": "walks",
        "target": "specgrammar.native",
        "distribution": f"specgrammar {__version__}",
        "check": "",
        "state": f"unavailable: {reason}" if reason else "available",
        "abilities": "" if reason else "trees of a batch in one native call",
    }


def _abilities(plugin: Plugin, factory: Any) -> str:
    parts: list[str] = []
    if plugin.group is BACKENDS:
        facts = factory.facts
        parts.append("rollback " + ("unlimited" if facts.max_rollback is None else str(facts.max_rollback)))
        parts.append("kinds: " + ("all" if facts.kinds == ALL_KINDS else ", ".join(sorted(facts.kinds))))
        if facts.grammar_syntaxes:
            parts.append("grammars: " + ", ".join(sorted(facts.grammar_syntaxes)))
        parts.append("thread-safe" if facts.thread_safe else "one thread")
    elif plugin.group is ALGORITHMS:
        algorithm = factory()
        parts.append(f"{algorithm.topology.kind} of up to {algorithm.topology.max_nodes} nodes")
        parts.append(f"{algorithm.proposal.name.lower()} drafts")
        parts.append("overlaps grammar" if supports_grammar_overlap(algorithm) else "history first")
    options = sorted(option_names(factory, 1 if plugin.group is BACKENDS else 0))
    if options and plugin.group in (BACKENDS, ALGORITHMS):
        parts.append("options: " + ", ".join(options))
    return "; ".join(parts)
