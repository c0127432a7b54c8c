"""One compilation in this process, with a time limit, and with every failure as one clear error.

This is for compilers that are known to end. What may hang is tried in a process that can be killed first: see
`grammar.compile_service`.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time

from specgrammar.checks import check_number
from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.native import one_line
from specgrammar.language.source import check_source
from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend, GrammarSpec

MAX_TIMEOUT_S = 86_400
"""The longest time limit, a day: waits of the standard library overflow on what is much longer."""
MAX_LEFT_BEHIND = 16
"""Compilations that ran out of time and still run, at which no further one begins: each holds a core."""

_END_WAIT_S = 5.0
"""How long the interpreter's end waits for compilations under way: native code that comes back to an
interpreter that is gone aborts the process."""

_lock = threading.Lock()
_running: set[threading.Thread] | None = set()
"""None once the interpreter is ending."""
_left_behind: set[threading.Thread] = set()


class CompileInterruptedError(GrammarCompileError):
    """Not known to be the grammar's fault: out of time or memory, a crash. It may be tried again."""


def out_of_time(spec: GrammarSpec, timeout_s: float) -> CompileInterruptedError:
    """The error for a grammar that took too long."""
    return CompileInterruptedError(
        f"{spec.kind}: not compiled within {timeout_s:g} s (compile_timeout_s); make it smaller, or raise the "
        "time limit"
    )


def check_spec(backend: GrammarBackend, spec: GrammarSpec) -> None:
    """Raise GrammarCompileError for what no backend could take, and for kinds that this one does not."""
    check_source(spec)
    kinds = backend.facts.kinds
    if spec.kind not in kinds:
        raise GrammarCompileError(
            f"backend {type(backend).__name__} compiles no {spec.kind}; it compiles: {', '.join(sorted(kinds))}"
        )


def compile_grammar(backend: GrammarBackend, spec: GrammarSpec, *, timeout_s: float = 30.0) -> CompiledGrammar:
    """Compile a grammar in a thread of its own.

    A native compiler cannot be interrupted: after the limit it goes on in its daemon thread until it is
    done, and its result is dropped.

    Args:
        backend: compiles.
        spec: the grammar; checked against the limits on size and the backend's facts before it sees it.
        timeout_s: seconds to wait, above 0 and at most `MAX_TIMEOUT_S`.

    Raises:
        ConfigError: an impossible time limit.
        CompileInterruptedError: too slow, or the backend failed other than by refusing the grammar.
        GrammarCompileError: the grammar is broken or too large, or of a kind that the backend does not compile.
    """
    check_number("compile: timeout_s", timeout_s, 0, MAX_TIMEOUT_S, above=True)
    check_spec(backend, spec)
    results: queue.SimpleQueue[CompiledGrammar | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(backend.compile(spec))
        except BaseException as error:  # whatever a backend raises is handed to the caller
            results.put(error)
        finally:
            _forget(thread)

    thread = threading.Thread(target=work, name="specgrammar-compile", daemon=True)
    _check_left_behind(spec)
    try:
        _start(thread, spec)
    except RuntimeError as error:  # the system has no thread left
        raise CompileInterruptedError(f"{spec.kind}: no thread to compile in: {one_line(error)}") from error
    try:
        result = results.get(timeout=timeout_s)
    except queue.Empty:
        _left_behind.add(thread)
        _forget(thread)
        raise out_of_time(spec, timeout_s) from None
    if isinstance(result, GrammarCompileError):
        raise result
    if isinstance(result, BaseException):
        raise CompileInterruptedError(f"{spec.kind}: the backend failed: {one_line(result)}") from result
    return result


def _check_left_behind(spec: GrammarSpec) -> None:
    for thread in [thread for thread in _left_behind.copy() if not thread.is_alive()]:
        _left_behind.discard(thread)
    if len(_left_behind) >= MAX_LEFT_BEHIND:
        raise CompileInterruptedError(
            f"{spec.kind}: not compiled, {len(_left_behind)} compilations that ran out of time still run in "
            "this process; restart it, and refuse the grammars that they are for"
        )


def _start(thread: threading.Thread, spec: GrammarSpec) -> None:
    with _lock:
        if _running is None:
            raise CompileInterruptedError(f"{spec.kind}: not compiled, the interpreter is ending")
        thread.start()
        _running.add(thread)


def _forget(thread: threading.Thread) -> None:
    with _lock:
        if _running is not None:
            _running.discard(thread)


@atexit.register
def _end() -> None:
    global _running
    with _lock:
        threads, _running = list(_running or ()), None
    deadline = time.monotonic() + _END_WAIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that did not come along may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
