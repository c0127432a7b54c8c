"""Compilation beside the step: requests hand in specs, get tickets, and do not wait for each other.

**Where it compiles.** Some native compilers hang on some grammars, short ones among them (xgrammar runs for
minutes on the regex `(.{1,50} ){1,90}`), and nothing stops a native call but the end of its process. Backends
that know this of themselves (`SupportsTrial`) say which specs *may* hang. Those are tried in a child process
first, which is killed at the limit of time or memory; what ended there ends here as well, in about the same
time, so it is then compiled in this process. All others are compiled here at once.

**Why the result does not travel.** Measured with SmolLM2's vocabulary on 20 BFCL schemas: xgrammar compiles
one in 1 to 30 ms (300 ms for the first that has strings), writes it as 38 MB of JSON in 1.3 s and reads that in
0.6 s. llguidance has no such form, compiles one in 2 to 5 ms, and its compiler ends by limits of its own.

**Why not everything is tried.** A child takes 2.5 s to start where its library imports torch. It starts when
the first spec comes that may hang, and stays.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from specgrammar.errors import GrammarCompileError
from specgrammar.grammar.compile import CompileInterruptedError, check_spec, compile_grammar
from specgrammar.grammar.compile_cache import CompileCache, CompileKey, Outcome
from specgrammar.grammar.lane import Lane
from specgrammar.grammar.native import one_line
from specgrammar.grammar.trial import NoProcessError, TrialProcess, trial_processes
from specgrammar.protocols.abilities import SupportsTrial
from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend, GrammarSpec

_NUM_THREADS = 2
"""Grammars compiled in this process at a time; more would take cores from the forward."""
_NUM_THREADS_UNTRIED = 16
"""The same where nothing is tried before, so that a few that hang until the limit do not hold the others up."""
_NUM_TRIALS = 2
"""Most children, so that one grammar that hangs does not hold the next one up."""
_UNWANTED_S = 2.0
"""How long a trial that nobody waits for any more goes on: about what starting a new child costs."""

_log = logging.getLogger(__name__)


class _Flight:
    """One compilation under way, however many wait for it. Its fields change under the service's lock."""

    def __init__(self, key: CompileKey | None, spec: GrammarSpec, outcome: Outcome | None = None) -> None:
        self.key = key
        self.spec = spec
        self.outcome = outcome
        self.num_waiting = 0
        self.process: TrialProcess | None = None


class Ticket:
    """What `CompileService.submit` hands out."""

    def __init__(self, service: CompileService, flight: _Flight) -> None:
        self._service = service
        self._flight = flight

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._flight.outcome is not None

    def result(self) -> CompiledGrammar:
        """The grammar; waits for it, at most as long as compilations may take.

        Raises GrammarCompileError if there is none.
        """
        self._service.wait([self])
        outcome = self._flight.outcome
        assert outcome is not None
        if isinstance(outcome, GrammarCompileError):
            raise outcome.with_traceback(None)  # one error may be raised many times
        return outcome

    def drop(self) -> None:
        """Say, once, that the result is not wanted; the compilation goes on if somebody else wants it."""
        self._service._drop(self._flight)


class CompileService:
    """Compiles for one backend: one flight per key, a bounded cache, limits on time and memory. Thread-safe."""

    def __init__(
        self,
        backend: GrammarBackend,
        *,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
        memory_bytes: int = 2 << 30,
        cache: CompileCache | None = None,
    ) -> None:
        """Make a service; neither thread nor process starts yet.

        Args:
            backend: compiles.
            options: what it was made with, for the cache's key.
            timeout_s: seconds that one grammar may take, in each of the processes in which it is compiled.
            memory_bytes: memory that one grammar may take in a trial, where the system can bound it (Linux).
            cache: where outcomes are kept; by default 1,024 of them in 512 MB.
        """
        self._backend = backend
        self._timeout_s = timeout_s
        self._cache = CompileCache(1024, 512 << 20) if cache is None else cache
        kind = type(backend)
        self._key = partial(
            CompileKey,
            backend.vocabulary.fingerprint,
            f"{kind.__module__}.{kind.__qualname__}",
            repr(sorted((options or {}).items())),
        )
        self._trials = trial_processes(backend, _NUM_TRIALS, memory_bytes)
        self._reset()
        self._finalizer = weakref.finalize(self, _close_all, list(self._trials))
        _services.add(self)

    def submit(self, spec: GrammarSpec) -> Ticket:
        """Ask for a grammar; returns at once."""
        try:
            check_spec(self._backend, spec)
        except GrammarCompileError as error:
            return Ticket(self, _Flight(None, spec, error))
        key = self._key(spec)
        with self._changed:
            known = self._cache.get(key)
            if known is not None:
                return Ticket(self, _Flight(key, spec, known))
            flight = self._flights.get(key)
            is_new = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight(key, spec)
            flight.num_waiting += 1
        if is_new:
            self._put(self._here, self._begin, flight)
        return Ticket(self, flight)

    def wait(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> bool:
        """Wait until all tickets are done, but not longer than the timeout; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: all(ticket.done() for ticket in tickets), timeout_s)

    def close(self) -> None:
        """End the children; also happens when the service is collected and when the interpreter ends."""
        self._finalizer()

    # -- a flight's way, each on a thread of a lane ---------------------------------------------------------

    def _begin(self, flight: _Flight) -> None:
        if not self._is_wanted(flight):
            return
        try:
            may_hang = isinstance(self._backend, SupportsTrial) and self._backend.may_hang(flight.spec)
        except GrammarCompileError as error:
            self._finish(flight, error)
            return
        if may_hang and self._trials:
            self._put(self._away, self._try, flight)
        else:
            self._compile(flight)

    def _try(self, flight: _Flight) -> None:
        process = self._idle.pop()
        try:
            with self._changed:
                flight.process = process
            if self._is_wanted(flight):
                process.try_compile(flight.spec, self._timeout_s)
                self._compile(flight)  # in this lane: it takes as long again, and quick ones wait in the other
        except NoProcessError as error:
            if not self._finalizer.alive:
                raise CompileInterruptedError(
                    f"{flight.spec.kind}: not compiled: the engine has ended"
                ) from error
            self._do_without_trials(error)
            self._put(self._here, self._compile, flight)
        finally:
            with self._changed:
                flight.process = None
            self._idle.append(process)

    def _compile(self, flight: _Flight) -> None:
        if self._is_wanted(flight):
            self._finish(flight, compile_grammar(self._backend, flight.spec, timeout_s=self._timeout_s))

    def _put(self, lane: Lane, work: Any, flight: _Flight) -> None:
        """Queue the next part of a flight's way; whatever it raises is the flight's outcome."""

        def job() -> None:
            try:
                work(flight)
            except GrammarCompileError as error:
                self._finish(flight, error)
            except BaseException as error:  # a plugin's `may_hang`, say
                self._finish(flight, _interrupted(flight.spec, f"the backend failed: {one_line(error)}"))

        try:
            lane.put(job)
        except RuntimeError as error:
            self._finish(flight, _interrupted(flight.spec, f"no thread to compile in: {one_line(error)}"))

    def _finish(self, flight: _Flight, outcome: Outcome) -> None:
        with self._changed:
            flight.outcome = outcome
            self._leave(flight)
            if flight.key is not None and not isinstance(outcome, CompileInterruptedError):
                self._cache.put(flight.key, outcome)
            self._changed.notify_all()

    # -- flights that nobody wants ------------------------------------------------------------------------

    def _is_wanted(self, flight: _Flight) -> bool:
        """Whether somebody still waits for it; else it is over."""
        with self._changed:
            if not flight.num_waiting:
                self._leave(flight)
            return flight.num_waiting > 0

    def _drop(self, flight: _Flight) -> None:
        with self._changed:
            flight.num_waiting -= 1
            if flight.num_waiting or flight.process is None:
                return
        timer = threading.Timer(_UNWANTED_S, self._strike, [flight])
        timer.daemon = True
        timer.start()

    def _strike(self, flight: _Flight) -> None:
        with self._changed:
            if not flight.num_waiting and flight.process is not None:
                self._leave(flight)  # who wants it from now on starts another
                flight.process.strike()

    def _leave(self, flight: _Flight) -> None:
        if flight.key is not None and self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    # -- where there are no children ------------------------------------------------------------------------

    def _do_without_trials(self, error: NoProcessError) -> None:
        with self._changed:
            had_some, self._trials = bool(self._trials), []
            if had_some:
                self._here = Lane("specgrammar-compile-here", _NUM_THREADS_UNTRIED)
        if had_some:
            _log.warning(
                "no process to try grammars in: %s. They are compiled in this one; a compiler that hangs "
                "will not be stopped, only left behind at the time limit.",
                error,
            )

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._flights: dict[CompileKey, _Flight] = {}
        num_threads = _NUM_THREADS if self._trials else _NUM_THREADS_UNTRIED
        self._here = Lane("specgrammar-compile-here", num_threads)
        self._away = Lane("specgrammar-compile-away", _NUM_TRIALS)
        self._idle = list(self._trials)

    def _after_fork(self) -> None:
        """In a process that was forked: no thread came along, and the children belong to the other one."""
        for process in self._trials:
            process.forget()
        self._cache.after_fork()
        flights = list(self._flights.values())
        self._reset()
        for flight in flights:
            flight.outcome = _interrupted(flight.spec, "the process was forked meanwhile; submit it again")


def _interrupted(spec: GrammarSpec, why: str) -> CompileInterruptedError:
    return CompileInterruptedError(f"{spec.kind}: not compiled: {why}")


def _close_all(processes: list[TrialProcess]) -> None:
    for process in processes:
        process.close()


_services: weakref.WeakSet[CompileService] = weakref.WeakSet()


def _after_fork() -> None:
    for service in list(_services):
        service._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
