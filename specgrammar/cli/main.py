"""`specgrammar`: the command line. Data goes to standard output, progress, tables and errors to standard error.

Exit status: 0, all well; 1, a request failed; 2, the call or the configuration is wrong; 70, a defect in
specgrammar; 130, interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from specgrammar import __version__
from specgrammar.cli import check, generate, model, plugins, trace, tree
from specgrammar.errors import ConfigError, SpecGrammarError

_LONGEST_MESSAGE = 1_000  # argparse repeats what was typed, whatever its length


class Parser(argparse.ArgumentParser):
    """A parser for which a wrong call is an error like any other, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Refuse the call."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(prog="specgrammar", description="Grammar-constrained speculative decoding.")
    top.add_argument("--version", action="version", version=f"specgrammar {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (generate, trace, tree, plugins, check, model):
        command.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; every failure is one line on standard error, never a traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # data, whatever the locale can show
    try:
        arguments = _parsed(sys.argv[1:] if argv is None else argv)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except SpecGrammarError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        return 0
    except Exception as error:
        if os.environ.get("SPECGRAMMAR_DEBUG"):
            traceback.print_exc()
        hint = "this is a defect in specgrammar; set SPECGRAMMAR_DEBUG=1 for the traceback"
        return _fail(f"{type(error).__name__}: {error} ({hint})", 70)


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    for word in argv:
        if word.startswith("--") and word.endswith("=--"):  # argparse makes an empty list of it, of any type
            raise ConfigError(f"{word}: '--' cannot be a value")
    return parser().parse_args(argv)


def _fail(message: str, status: int) -> int:
    text = " ".join(message.split()).encode(errors="backslashreplace").decode()  # a path may be any bytes
    cut = text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."
    print(f"specgrammar: error: {cut}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
