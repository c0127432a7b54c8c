"""Compilation with a time limit, and with every failure as one clear error."""

from __future__ import annotations

import queue
import threading

from specgrammar.checks import check_number
from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.native import one_line
from specgrammar.language.source import check_source
from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend, GrammarSpec

MAX_TIMEOUT_S = 86_400
"""The longest time limit, a day: waits of the standard library overflow on what is much longer."""


def compile_grammar(backend: GrammarBackend, spec: GrammarSpec, *, timeout_s: float = 30.0) -> CompiledGrammar:
    """Compile a grammar in a thread of its own.

    A native compiler cannot be interrupted: after the limit it goes on in its daemon thread until it is
    done, and its result is dropped.

    Args:
        backend: compiles.
        spec: the grammar; checked against the limits on size before the backend sees it.
        timeout_s: seconds to wait, above 0 and at most `MAX_TIMEOUT_S`.

    Raises:
        ConfigError: an impossible time limit.
        GrammarCompileError: the grammar is broken, too large or too slow, or the backend failed.
    """
    check_number("compile: timeout_s", timeout_s, 0, MAX_TIMEOUT_S, above=True)
    check_source(spec)
    results: queue.SimpleQueue[CompiledGrammar | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(backend.compile(spec))
        except BaseException as error:  # whatever a backend raises is handed to the caller
            results.put(error)

    try:
        threading.Thread(target=work, name="specgrammar-compile", daemon=True).start()
    except RuntimeError as error:  # the system has no thread left
        raise GrammarCompileError(f"{spec.kind}: no thread to compile in: {one_line(error)}") from error
    try:
        result = results.get(timeout=timeout_s)
    except queue.Empty:
        raise GrammarCompileError(
            f"{spec.kind}: not compiled within {timeout_s:g} s; make it smaller, or raise the time limit"
        ) from None
    if isinstance(result, GrammarCompileError):
        raise result
    if isinstance(result, BaseException):
        raise GrammarCompileError(f"{spec.kind}: the backend failed: {one_line(result)}") from result
    return result
