"""A process that compiles a grammar before this one does, so that it can be killed where the compiler hangs.

It is a plain child (`python -c`), not one of `multiprocessing`: it needs no importable `__main__`, starts no
further helper processes, and is safe to start from a thread and beside a GPU.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from specgrammar.errors import GrammarCompileError, PluginError, WeakenedSchemaError
from specgrammar.grammar.compile import CompileInterruptedError, out_of_time
from specgrammar.grammar.native import one_line
from specgrammar.grammar.trial_child import Setup, Trial
from specgrammar.protocols.abilities import SupportsTrial
from specgrammar.protocols.grammar import GrammarBackend, GrammarSpec

_CODE = """
import pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = pickle.load(sys.stdin.buffer)
from specgrammar.grammar.trial_child import main
main()
"""
_START_TIMEOUT_S = 120.0
"""For imports (xgrammar's take 2 s here, torch among them) on a slow disk, and the vocabulary."""
_REFUSALS = {error.__name__: error for error in (GrammarCompileError, WeakenedSchemaError)}


class NoProcessError(Exception):
    """There is no process to try in, and there will be none; the message says why."""


class TrialProcess:
    """A child with a backend of its own, started when it is needed and again when it was killed.

    Used from one thread at a time, but for `strike`, `close` and `forget`, which may come from any.
    """

    def __init__(self, recipe: bytes, memory_bytes: int) -> None:
        """Say how; nothing starts yet.

        Args:
            recipe: the pickle of what makes the backend.
            memory_bytes: most memory that one grammar may take, beyond what the process had before.
        """
        self._recipe = recipe
        self._memory_bytes = memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._deadline: _Deadline | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The running child's id; None if there is none."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    def try_compile(self, spec: GrammarSpec, timeout_s: float) -> None:
        """Compile in the child; returns if that worked.

        Args:
            spec: the grammar.
            timeout_s: seconds for the compilation itself; a start of the child does not count.

        Raises:
            NoProcessError: the child cannot be started.
            CompileInterruptedError: out of time or memory, or the compiler crashed; the child is gone then.
            GrammarCompileError: the backend refuses the grammar.
        """
        child = self._started()
        answer, in_time = self._ask(child, timeout_s, Trial(spec, timeout_s, self._memory_bytes))
        outcome = "died" if answer is None else answer["outcome"]
        code = 0 if in_time and outcome in ("done", "refused", "failed") else self._end()
        if outcome == "done":
            return
        if answer is not None and outcome == "refused":
            raise _REFUSALS.get(answer["type"], GrammarCompileError)(answer["message"])
        if answer is not None and outcome == "failed":
            raise CompileInterruptedError(f"{spec.kind}: the backend failed: {answer['message']}")
        if not in_time or code == -getattr(signal, "SIGALRM", 0):
            raise out_of_time(spec, timeout_s)
        limit = f"it may have needed more than the {self._memory_bytes >> 20} MB (compile_memory_mb)"
        what = "is out of memory" if outcome == "memory" else f"crashed ({_ending(code)})"
        raise CompileInterruptedError(
            f"{spec.kind}: the compiler {what}; {limit}; make the grammar smaller, or raise the limit"
        )

    def strike(self) -> None:
        """End a trial under way as if it were out of time."""
        deadline = self._deadline
        if deadline is not None:
            deadline.strike()

    def close(self) -> None:
        """Kill the child for good; a trial under way ends as crashed."""
        with self._lock:
            self._closed = True
        child = self._child
        if child is not None:
            child.kill()
            child.wait()
            if self._deadline is None:  # else the thread that is in a trial does it
                _close_pipes(child)

    def forget(self) -> None:
        """Leave the child to the process that this one was forked from."""
        child, self._child = self._child, None
        self._lock = threading.Lock()  # a thread that did not come along may have held it
        if child is not None:
            _close_pipes(child)
            child.returncode = 0  # it is not this process's to wait for

    def _started(self) -> subprocess.Popen[bytes]:
        if self.pid is not None:
            assert self._child is not None
            return self._child
        self._end()
        with self._lock:
            if self._closed:
                raise NoProcessError("it was closed")
            child = self._child = _spawn()
        answer, in_time = self._ask(child, _START_TIMEOUT_S, list(sys.path), Setup(self._recipe))
        if answer is None:
            code = self._end()
            why = f"it ended at its start ({_ending(code)})" if in_time else "it took too long to start"
            raise NoProcessError(why)
        if answer["outcome"] != "done":
            self._end()
            raise NoProcessError(f"the backend could not be made there: {answer['type']}: {answer['message']}")
        return child

    def _ask(
        self, child: subprocess.Popen[bytes], timeout_s: float, *messages: object
    ) -> tuple[dict[str, str] | None, bool]:
        """Send messages; gives the answer, None if the child ended, and whether it had its time until then."""
        assert child.stdin is not None
        assert child.stdout is not None
        line = b""
        # What is suppressed: the child is gone, or its pipes were closed.
        with _Deadline(child, timeout_s) as self._deadline, suppress(OSError, ValueError):
            for message in messages:
                _send(child.stdin, pickle.dumps(message))
            line = child.stdout.readline()
        in_time, self._deadline = not self._deadline.struck, None
        return (json.loads(line) if line.endswith(b"\n") else None), in_time

    def _end(self) -> int:
        """Make sure that the child is gone, and give its exit code."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.kill()
        code = child.wait()
        _close_pipes(child)
        return code


def trial_processes(backend: GrammarBackend, number: int, memory_bytes: int) -> list[TrialProcess]:
    """Processes for a backend, none started; none at all for one that does not ask for trials.

    Raises PluginError for a recipe that cannot be pickled.
    """
    if not isinstance(backend, SupportsTrial):
        return []
    try:
        recipe = pickle.dumps(backend.recipe())
    except Exception as error:
        raise PluginError(
            f"backend {type(backend).__name__}: its recipe cannot be pickled: {one_line(error)}; return a "
            "class or a functools.partial of one that other processes can import"
        ) from error
    return [TrialProcess(recipe, memory_bytes) for _ in range(number)]


class _Deadline:
    """Kills a child that has not answered in time, and never one that has."""

    def __init__(self, child: subprocess.Popen[bytes], seconds: float) -> None:
        self.struck = False
        self._child = child
        self._armed = True
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self.strike)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._armed = False
        self._timer.cancel()

    def strike(self) -> None:
        with self._lock:
            if self._armed:
                self.struck = True
                self._child.kill()


def _spawn() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise NoProcessError("this is a frozen application, which has no interpreter to start")
    # One thread and no GPU: nothing that would use them runs there.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:
        raise NoProcessError(f"the system starts none: {one_line(error)}") from error


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def _send(pipe: IO[bytes], message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[pipe.write(rest) :]


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
