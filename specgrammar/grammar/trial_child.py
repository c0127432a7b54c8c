"""What runs in the process that tries grammars: read a spec, compile it, say what became of it.

It reads pickles from standard input, first `Setup`, then a `Trial` each, and answers with lines of JSON on what
was standard output when it began. It ends with its input. An answer is data only, as native code that a hostile
grammar has broken may have written it.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from typing import IO, Any, NamedTuple

from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.native import one_line
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec

_KILLER_LATE_S = 2.0
"""How much later than the limit the process ends itself, which is needed only if its parent is gone."""


class Setup(NamedTuple):
    """The first message: how the backend is made (a pickle, so that failing to read it can be answered)."""

    recipe: bytes


class Trial(NamedTuple):
    """A grammar to try."""

    spec: GrammarSpec
    timeout_s: float
    memory_bytes: int


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    setup: Setup = pickle.load(sys.stdin.buffer)
    try:
        backend: GrammarBackend = pickle.loads(setup.recipe)()
    except BaseException as error:
        _answer(answers, "failed", error)
        return
    _answer(answers, "done")
    while (trial := _next_trial(sys.stdin.buffer)) is not None:
        _limit_memory(trial.memory_bytes)
        _set_alarm(trial.timeout_s + _KILLER_LATE_S)
        try:
            backend.compile(trial.spec)
        except GrammarCompileError as error:
            _answer(answers, "memory" if "bad_alloc" in str(error) else "refused", error)
        except MemoryError as error:
            _answer(answers, "memory", error)
        except BaseException as error:
            _answer(answers, "failed", error)
        else:
            _answer(answers, "done")
        _set_alarm(0)


def _next_trial(source: IO[bytes]) -> Trial | None:
    try:
        trial: Trial = pickle.load(source)
    except EOFError:
        return None
    return trial


def _answer(answers: IO[str], outcome: str, error: BaseException | None = None) -> None:
    fields: dict[str, Any] = {"outcome": outcome}
    if error is not None:
        fields["type"] = type(error).__name__
        fields["message"] = str(error) if isinstance(error, GrammarCompileError) else one_line(error)
    print(json.dumps(fields), file=answers, flush=True)


def _set_alarm(seconds: float) -> None:
    """Let the system end this process later, 0 for not at all; it needs neither the parent nor the GIL."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory(num_bytes: int) -> None:
    """Bound the address space to what is mapped now and `num_bytes`, where the system tells and keeps to it."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = mapped + num_bytes
        resource.setrlimit(
            resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )
    except (ImportError, OSError, ValueError):  # not Linux: the limit on time still holds
        return
