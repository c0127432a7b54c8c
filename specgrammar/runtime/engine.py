"""`Engine`: requests in, finished requests out; requests join and leave between steps.

engine = Engine.build(config, adapter)
for output in engine.generate(requests):
    print(output.text)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from specgrammar.config import Config
from specgrammar.errors import ConfigError, InvalidTokenError, MatcherError, RequestError, SpecGrammarError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.compile import compile_grammar
from specgrammar.grammar.gate import Gate
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import staging_for
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    SupportsBatchFill,
    Vocabulary,
)
from specgrammar.protocols.spec import (
    CausalDrafter,
    Commit,
    DecodeBatch,
    ProducerContext,
    RequestView,
    SpecAlgorithm,
)
from specgrammar.protocols.staging import Device
from specgrammar.protocols.target import TargetModel
from specgrammar.registry import ALGORITHMS, BACKENDS, create
from specgrammar.runtime.ledger import Entry, Ledger
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.step import StepParts, decode_step
from specgrammar.runtime.trace import Trace
from specgrammar.spec.accept import check_acceptance


class EngineAdapter(Protocol):
    """What an engine needs of a model runtime; the transformers adapter is one."""

    @property
    def target(self) -> TargetModel:
        """The model that verifies."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokenizer."""
        ...

    @property
    def device(self) -> Device:
        """Where its logits are."""
        ...

    def load_drafter(self, name: str) -> CausalDrafter:
        """Load a causal draft model on the same device."""
        ...


@dataclass(frozen=True)
class Running:
    """A request in flight."""

    request: Request
    entry: Entry
    weakened: tuple[str, ...]


class Engine:
    """A small continuous-batching engine around `decode_step`."""

    def __init__(
        self,
        adapter: EngineAdapter,
        backend: GrammarBackend,
        algorithm: SpecAlgorithm,
        config: Config,
    ) -> None:
        """Put the parts together; use `build` to create them by name.

        Raises ConfigError for parts that cannot work together.
        """
        check_acceptance(config.acceptance, algorithm.proposal)
        _check_rollback(backend, algorithm, config)
        self.config = config
        self.trace = Trace()
        self._backend = backend
        self._vocabulary = adapter.vocabulary
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Running] = {}
        self._never_ran: list[RequestOutput] = []
        self._step = 0
        context = ProducerContext(
            adapter.vocabulary, config.max_batch_size, adapter.load_drafter, adapter.target
        )
        self._parts = StepParts(
            producer=algorithm.make_producer(context),
            staging=staging_for(algorithm.topology.kind, adapter.device),
            target=adapter.target,
            ledger=Ledger(),
            allocator=BitmaskRing(adapter.device, adapter.vocabulary.num_words),
            device=adapter.device,
            vocabulary=adapter.vocabulary,
            batch_fill=backend if isinstance(backend, SupportsBatchFill) else None,
            method=config.acceptance,
            trace=self.trace,
        )

    @classmethod
    def build(cls, config: Config, adapter: EngineAdapter) -> Engine:
        """Create backend and algorithm by the names in `config`."""
        backend = create(BACKENDS, config.backend, adapter.vocabulary, **config.backend_options)
        algorithm = create(ALGORITHMS, config.algorithm, **config.algorithm_options)
        return cls(adapter, backend, algorithm, config)

    def add(self, request: Request) -> None:
        """Queue a request; it joins when there is room. Its failures come out as its output."""
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """End a request; its output so far comes out of the next `step` with reason `abort`."""
        running = self._running.get(request_id)
        if running is not None:
            running.entry.session.abort()
        for request in [request for request in self._waiting if request.request_id == request_id]:
            self._waiting.remove(request)
            self._never_ran.append(RequestOutput(request_id, "", (), "abort"))

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._waiting or self._running or self._never_ran)

    def step(self) -> list[RequestOutput]:
        """Let requests join, decode once, and return those that are finished."""
        outputs = self._settle()
        self._admit()
        outputs += self._never_ran
        self._never_ran = []
        if self._running:
            batch = self._batch()
            logprobs = any(running.request.logprobs for running in self._running.values())
            decode_step(self._parts, batch, want_logprobs=logprobs)
            self._step += 1
            outputs += self._settle()
        return outputs

    def generate(self, requests: Iterable[Request]) -> Iterator[RequestOutput]:
        """Add all requests and step until they are done; outputs come as they finish."""
        for request in requests:
            self.add(request)
        while self.has_work:
            yield from self.step()

    # -- joining -----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting requests while there is room; those that cannot start are over."""
        while self._waiting and len(self._running) < self.config.max_batch_size:
            request = self._waiting.popleft()
            try:
                self._running[request.request_id] = self._start(request)
            except SpecGrammarError as error:
                self._never_ran.append(RequestOutput(request.request_id, "", (), "error", str(error)))

    def _start(self, request: Request) -> Running:
        self._check_prompt(request)
        compiled = self._compile(request)
        session = GrammarSession(
            self._vocabulary,
            None if compiled is None else self._matcher(compiled),
            gate=Gate(request.grammar_start) if request.grammar_start else None,
            stops=StopRules(
                frozenset((*self._vocabulary.stop_ids, *request.stop_token_ids)),
                request.stop_strings,
                self._max_new_tokens(request),
            ),
        )
        with self.trace.span("prefill"):
            self._parts.target.add(request.request_id, request.prompt_tokens)
        entry = self._parts.ledger.join(request.request_id, request.prompt_tokens, session, self._step)
        return Running(request, entry, () if compiled is None else compiled.weakened)

    def _max_new_tokens(self, request: Request) -> int:
        """What fits behind the prompt: the last token is never cached. `target.add` refuses longer prompts."""
        limit = self._parts.target.max_length
        num_free = request.max_new_tokens if limit is None else limit - len(request.prompt_tokens) + 1
        return max(1, min(request.max_new_tokens, num_free))

    def _compile(self, request: Request) -> CompiledGrammar | None:
        if request.grammar is None:
            return None
        with self.trace.span("compile"):
            compiled: CompiledGrammar = compile_grammar(
                self._backend, request.grammar, timeout_s=self.config.compile_timeout_s
            )
        return compiled

    def _matcher(self, compiled: CompiledGrammar) -> GrammarMatcher:
        try:
            return self._backend.matcher(compiled)
        except RequestError:
            raise
        except Exception as error:
            raise MatcherError(f"the grammar backend raised {type(error).__name__}: {error}") from error

    def _check_prompt(self, request: Request) -> None:
        if request.request_id in self._running:
            raise ConfigError(f"request id {request.request_id!r} is in flight already; ids must be unique")
        if not request.prompt_tokens:
            raise RequestError(f"request {request.request_id!r}: the prompt is empty; give at least one token")
        for position, token in enumerate(request.prompt_tokens):
            if not 0 <= token < self._vocabulary.vocab_size:
                raise InvalidTokenError(
                    f"request {request.request_id!r}: prompt token {position} has the id {token}, outside "
                    f"[0, {self._vocabulary.vocab_size}); encode the prompt with the model's tokenizer"
                )

    # -- decoding ----------------------------------------------------------------------------------------

    def _batch(self) -> DecodeBatch:
        return DecodeBatch(self._step, tuple(_view(running) for running in self._running.values()))

    # -- leaving -----------------------------------------------------------------------------------------

    def _settle(self) -> list[RequestOutput]:
        """Resolve histories, tell the producer, and let finished requests leave."""
        with self.trace.span("settle"):
            commits = self._parts.ledger.resolve()
            over = [running for running in self._running.values() if running.entry.session.finish is not None]
            reported = {commit.request_id for commit in commits if commit.finished}
            aborted = [r.request.request_id for r in over if r.request.request_id not in reported]
            commits += [Commit(request_id, (), 0, 0, finished=True) for request_id in aborted]
            if commits:
                self._parts.producer.observe(commits)
            if over:  # an end that the grammar does not share is an error: let it move before the output leaves
                self._parts.ledger.advance_pending()
            return [self._leave(running) for running in over]

    def _leave(self, running: Running) -> RequestOutput:
        request, entry = running.request, running.entry
        del self._running[request.request_id]
        self._parts.ledger.leave(request.request_id)
        self._parts.target.remove(request.request_id)
        session = entry.session
        assert session.finish is not None
        return RequestOutput(
            request.request_id,
            session.text,
            tuple(session.output),
            session.finish,
            None if session.error is None else str(session.error),
            entry.num_verify_steps,
            running.weakened,
            session.engaged,
            tuple(entry.logprobs) if request.logprobs else None,
        )


def _view(running: Running) -> RequestView:
    request, entry = running.request, running.entry
    limit = entry.session.stops.max_new_tokens
    assert limit is not None
    num_left = limit - len(entry.session.output)
    return RequestView(
        request.request_id, entry.tokens, entry.num_prompt_tokens, max(0, num_left - 1), request.sampling
    )


def _check_rollback(backend: GrammarBackend, algorithm: SpecAlgorithm, config: Config) -> None:
    limit = backend.facts.max_rollback
    if limit is not None and algorithm.topology.max_depth > limit:
        raise ConfigError(
            f"backend {config.backend!r} can undo {limit} tokens, but algorithm {config.algorithm!r} drafts "
            f"{algorithm.topology.max_depth} deep; lower its depth or use another backend"
        )
