"""`Engine`: requests in, finished requests out; requests join and leave between steps.

engine = Engine.build(config, adapter)
for output in engine.generate(requests):
    print(output.text)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from specgrammar.config import Config
from specgrammar.errors import ConfigError, SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.compile_cache import CompileCache
from specgrammar.grammar.compile_service import CompileService
from specgrammar.grammar.filling import as_request_error
from specgrammar.grammar.staging import staging_for
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.adapter import EngineAdapter
from specgrammar.protocols.grammar import GrammarBackend
from specgrammar.protocols.spec import (
    Commit,
    ProducerContext,
    SpecAlgorithm,
    TreeProducer,
    supports_grammar_overlap,
)
from specgrammar.registry import BACKENDS, algorithm_of, create
from specgrammar.runtime.admission import Admission
from specgrammar.runtime.compatible import check_parts, checked_producer, deepest_undo
from specgrammar.runtime.ledger import Ledger
from specgrammar.runtime.masking import MaskParts
from specgrammar.runtime.policy import Agree, describe, mask_policy
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.running import Running
from specgrammar.runtime.scheduler import Scheduler, StepRules
from specgrammar.runtime.step import StepParts, decode_step
from specgrammar.runtime.trace import Trace
from specgrammar.runtime.waiting import AgreeJoins, Waiting, WaitingRequests

_IDLE_WAIT_S = 0.1
"""Longest wait, for the grammars of the first batch, of a step that has nothing to decode: nearly all grammars
are compiled by then, so their requests begin together."""


class Engine:
    """A small continuous-batching engine around `decode_step`."""

    def __init__(
        self,
        adapter: EngineAdapter,
        backend: GrammarBackend,
        algorithm: SpecAlgorithm,
        config: Config,
        *,
        agree: Agree = lambda choice: choice,
        agree_joins: AgreeJoins = lambda numbers: numbers,
        agree_budget: Callable[[int], int] = lambda number: number,
    ) -> None:
        """Put the parts together; use `build` to create them by name.

        Args:
            adapter: the model's.
            backend: compiles grammars.
            algorithm: drafts.
            config: the rest.
            agree: where several replicas decode the same batch, makes one of their `auto` choices everybody's.
            agree_joins: likewise, which requests join: grammars are not compiled everywhere at the same time.
            agree_budget: likewise, how many drafts an algorithm verifies by what it measured.

        Raises ConfigError for parts that cannot work together.
        """
        check_parts(backend, algorithm, adapter.target, config)
        self.config = config
        self.trace: Trace = Trace()
        adapter.device.on_work = self.trace.device_work
        compiles = CompileService(
            backend,
            options=config.backend_options,
            timeout_s=config.compile_timeout_s,
            memory_bytes=config.compile_memory_mb << 20,
            cache=CompileCache(config.compile_cache_entries, config.compile_cache_mb << 20),
        )
        self._admission = Admission(
            adapter.vocabulary, backend, adapter.target.max_length, deepest_undo(algorithm, config)
        )
        self._waiting = WaitingRequests(compiles, agree_joins)
        self._running: dict[str, Running] = {}
        self._due: list[RequestOutput] = []  # outputs that come out of the next step
        self._preempted: dict[str, Running] = {}
        self._resuming: list[str] = []
        self._step = 0
        context = ProducerContext(
            adapter.vocabulary,
            config.max_batch_size,
            adapter.device,
            adapter.load_drafter,
            adapter.target,
            agree_budget,
        )
        ledger = Ledger()
        mask_parts = MaskParts(
            ledger=ledger,
            allocator=BitmaskRing(adapter.device, adapter.vocabulary.num_words),
            device=adapter.device,
            vocabulary=adapter.vocabulary,
            workers=FillWorkers() if backend.facts.thread_safe else None,
            method=config.acceptance,
            trace=self.trace,
        )
        self._parts = StepParts(
            producer=checked_producer(algorithm.make_producer(context), config.algorithm),
            staging=staging_for(algorithm.topology.kind, adapter.device),
            target=adapter.target,
            ledger=ledger,
            masking=mask_policy(config.mask_policy, mask_parts, adapter.target, agree),
            device=adapter.device,
            vocabulary=adapter.vocabulary,
            max_depth=algorithm.topology.max_depth,
            trace=self.trace,
        )
        rules = StepRules(
            needs=self._parts.producer.needs,
            supports_grammar_overlap=supports_grammar_overlap(algorithm),
            supports_unresolved=getattr(adapter.target, "supports_unresolved", False) is True,
            max_nodes=algorithm.topology.max_nodes,
            max_length=adapter.target.max_length,
        )
        self._scheduler = Scheduler(rules, ledger, adapter.device, self.trace)

    @classmethod
    def build(
        cls,
        config: Config,
        adapter: EngineAdapter,
        *,
        agree: Agree = lambda choice: choice,
        agree_joins: AgreeJoins = lambda numbers: numbers,
        agree_budget: Callable[[int], int] = lambda number: number,
    ) -> Engine:
        """Create backend and algorithm by the names in `config`.

        Args:
            config: names and options.
            adapter: a loaded model, e.g. `TransformersAdapter.load()`.
            agree: see `Engine`.
            agree_joins: see `Engine`.
            agree_budget: see `Engine`.
        """
        if not isinstance(config, Config):
            raise ConfigError(f"Engine.build: config is a {type(config).__name__}; pass (config, adapter)")
        if not hasattr(adapter, "vocabulary"):
            raise ConfigError(f"Engine.build: {adapter!r} is no adapter; pass e.g. TransformersAdapter.load()")
        backend = create(BACKENDS, config.backend, adapter.vocabulary, **config.backend_options)
        return cls(
            adapter,
            backend,
            algorithm_of(config),
            config,
            agree=agree,
            agree_joins=agree_joins,
            agree_budget=agree_budget,
        )

    def add(self, request: Request) -> None:
        """Queue a request; it joins when its grammar is compiled and there is room, in order among those.

        Its failures come out as its output. While it waits it holds its compiled grammar.
        """
        self._waiting.add(request)

    def abort(self, request_id: str) -> None:
        """End a request; its output so far comes out of the next `step` with reason `abort`."""
        running = self._running.get(request_id) or self._preempted.get(request_id)
        if running is not None:
            running.entry.session.abort()
        if request_id in self._preempted:
            self._due.append(self._preempted.pop(request_id).output())
            self._resuming = [other for other in self._resuming if other != request_id]
        for _ in range(self._waiting.abort(request_id)):
            self._due.append(RequestOutput(request_id, "", (), "abort"))

    def preempt(self, request_id: str) -> None:
        """Take a running request out of the batch and free its cache; `resume` lets it go on.

        Drafts and results that were made for it before are stale then. Raises ConfigError for a request that
        is not running; one that has just ended comes out of the next `step`.
        """
        self._parts.ledger.resolve()
        ended = self._take_results()
        self._due += ended
        if request_id in {output.request_id for output in ended}:
            return
        if request_id not in self._running:
            raise ConfigError(f"preempt: request {request_id!r} is not running")
        self._parts.ledger.advance_pending()
        self._preempted[request_id] = self._take_out(request_id)
        self._parts.producer.observe([Commit(request_id, (), 0, 0, finished=True)])

    def resume(self, request_id: str) -> None:
        """Let a preempted request join again, before those that wait: its tokens so far are computed anew.

        Raises ConfigError for a request that is not preempted.
        """
        if request_id not in self._preempted or request_id in self._resuming:
            raise ConfigError(f"resume: request {request_id!r} is not preempted")
        self._resuming.append(request_id)

    @property
    def producer(self) -> TreeProducer:
        """Where drafts come from."""
        return self._parts.producer

    @property
    def masking(self) -> str:
        """Which mask policy is used and why, in one line."""
        return describe(self._parts.masking)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._waiting or self._running or self._due or self._resuming)

    def step(self) -> list[RequestOutput]:
        """Let requests join, decode once, and return those that are known to be finished.

        Where a step is launched behind one that is not resolved, what that one finishes comes out here.
        """
        self._due += self._settle()  # what is due is not lost where the step fails
        self._admit()
        self._scheduler.resolve_where_needed(self._running)  # also for those that have just joined
        batch = self._scheduler.batch(self._step, self._running)
        if batch.requests:
            logprobs = any(running.request.logprobs for running in self._running.values())
            self._scheduler.published = decode_step(self._parts, batch, want_logprobs=logprobs)
            self._step += 1
        elif self._running:  # all of them are over once the step in flight is resolved
            self._parts.ledger.resolve()
        self._due += self._settle()
        outputs, self._due = self._due, []
        self.trace.num_never_engaged += sum(output.grammar_engaged is False for output in outputs)
        return outputs

    def generate(self, requests: Iterable[Request]) -> Iterator[RequestOutput]:
        """Add all requests and step until they are done; outputs come as they finish."""
        if isinstance(requests, Request):
            raise ConfigError("generate takes a list of requests; pass [request]")
        for request in requests:
            self.add(request)
        return self._outputs()

    def _outputs(self) -> Iterator[RequestOutput]:
        while self.has_work:
            yield from self.step()

    # -- joining -----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start requests that can join while there is room; those that cannot start are over."""
        while self._resuming and len(self._running) < self.config.max_batch_size:
            self._go_on(self._resuming.pop(0))
        if self._waiting and not self._running and not self._due:
            with self.trace.span("compile"):
                self._waiting.wait(self.config.max_batch_size, _IDLE_WAIT_S)
        for waiting in self._waiting.ready():
            if len(self._running) == self.config.max_batch_size:
                return
            self._waiting.leave(waiting)
            request = waiting.request
            try:
                self._running[request.request_id] = self._start(waiting)
            except Exception as error:  # the model's own failures, too: they are this request's
                reason = (
                    str(error) if isinstance(error, SpecGrammarError) else f"{type(error).__name__}: {error}"
                )
                self._due.append(RequestOutput(request.request_id, "", (), "error", reason))

    def _start(self, waiting: Waiting) -> Running:
        request = waiting.request
        if request.request_id in self._running or request.request_id in self._preempted:
            raise ConfigError(f"request id {request.request_id!r} is in flight already; ids must be unique")
        with self.trace.span("compile"):
            session, weakened = self._admission.session(request, waiting.ticket)
        with self.trace.span("prefill"):
            self._parts.target.add(request.request_id, request.prompt_tokens)
        entry = self._parts.ledger.join(request.request_id, request.prompt_tokens, session, self._step)
        return Running(request, entry, weakened)

    def _go_on(self, request_id: str) -> None:
        running = self._preempted.pop(request_id)
        try:
            with self.trace.span("prefill"):
                self._parts.target.add(request_id, running.entry.tokens)
            self._parts.ledger.rejoin(request_id, running.entry, self._step)
            self._running[request_id] = running
        except Exception as error:  # the model's own failures, too: they are this request's
            running.entry.session.fail(as_request_error(error))
            self._due.append(running.output())

    # -- leaving -----------------------------------------------------------------------------------------

    def _settle(self) -> list[RequestOutput]:
        """Resolve the last step where the next one waits for it; see `_take_results`."""
        with self.trace.span("settle"):
            self._scheduler.resolve_where_needed(self._running)
            return self._take_results()

    def _take_results(self) -> list[RequestOutput]:
        """Tell the producer what was committed, and let finished requests leave."""
        commits = self._parts.ledger.take_commits()
        self.trace.num_accepted += sum(commit.num_accepted for commit in commits)
        self.trace.sources.accept(self._parts.ledger.take_accepted())
        over = [running for running in self._running.values() if running.entry.session.finish is not None]
        reported = {commit.request_id for commit in commits if commit.finished}
        aborted = [r.request.request_id for r in over if r.request.request_id not in reported]
        commits += [Commit(request_id, (), 0, 0, finished=True) for request_id in aborted]
        if commits:
            self._parts.producer.observe(commits)
        for running in over:
            running.entry.session.advance()  # an end that the grammar does not share is an error
        return [self._leave(running) for running in over]

    def _leave(self, running: Running) -> RequestOutput:
        self._take_out(running.request.request_id)
        return running.output()

    def _take_out(self, request_id: str) -> Running:
        self._parts.ledger.leave(request_id)
        self._parts.target.remove(request_id)
        return self._running.pop(request_id)
