"""What a ledger must say, kept in plain lists, and how a ledger is compared with that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import CompiledGrammar, GrammarSpec
from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Launched
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.checks.base import expect, same
from specgrammar.testing.checks.walking import legal_ids
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import GRAMMARS, STOP, TEXTS, VOCABULARY, texts_of

PROMPT = (7, 8)
LETTERS = GrammarSpec.regex("[abc12]*")
"""The grammar of the model: a token is legal if its letters are, wherever it comes."""


A, B, C, BRACE = 0, 1, 2, 6  # ids of the toy vocabulary


@cache
def compiled(spec: GrammarSpec) -> tuple[ReferenceBackend, CompiledGrammar]:
    """A small grammar, compiled once, and its backend."""
    backend = ReferenceBackend(VOCABULARY)
    return backend, backend.compile(spec)


def session_for(spec: GrammarSpec | None = None, stops: StopRules | None = None) -> GrammarSession:
    """A request's session, with a grammar or without."""
    if spec is None:
        return GrammarSession(VOCABULARY, stops=stops)
    backend, grammar = compiled(spec)
    return GrammarSession(VOCABULARY, backend.matcher(grammar), stops=stops)


class StepFailedError(Exception):
    """What a step of a check's raises."""


def fail() -> StepResult:
    """The work of a step that raises."""
    raise StepFailedError("the forward ran out of memory")


def result_of(request_id: str, tokens: Sequence[int], num_draft_tokens: int = 3) -> RequestResult:
    """A result whose last token is the target's own."""
    return RequestResult(request_id, tuple(tokens), num_draft_tokens, has_bonus=True)


def known(step: int, *results: RequestResult) -> Launched[StepResult]:
    """A step's results, there already."""
    return Outcome(lambda: StepResult(step, results))


def late(device: DelayedDevice, step: int, *results: RequestResult) -> Launched[StepResult]:
    """A step's results, on their way."""
    return device.launch(lambda: StepResult(step, results), "step")


@dataclass
class PlainRequest:
    """One request's books."""

    has_grammar: bool
    stops: StopRules
    joined: int
    last_step: int = -1
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_verify_steps: int = 0
    finish: str | None = None

    def keep(self, tokens: Sequence[int], has_bonus: bool) -> int:
        """Take tokens up to the end; how many."""
        num_before = len(self.output)
        for token in tokens:
            if self.finish is not None:
                break
            if not 0 <= token < VOCABULARY.vocab_size:
                self.finish = "error"
                break
            self.output.append(token)
            text = VOCABULARY.text(self.output)
            if token in self.stops.stop_ids:
                self.finish = "stop"
            elif any(string.encode() in text for string in self.stops.stop_strings):
                self.finish = "stop_string"
            elif len(self.output) == self.stops.max_new_tokens:
                self.finish = "length"
        if self.finish is None and not has_bonus:
            self.finish = "error"
        return len(self.output) - num_before

    def advance(self) -> None:
        """Let the grammar look at the output."""
        is_legal = [token == STOP or (token < len(TEXTS) and set(TEXTS[token]) <= set(b"abc12"))
                    for token in self.output]  # fmt: skip
        if self.has_grammar and not all(is_legal):
            self.finish = "error"


class PlainLedger:
    """The same calls as a ledger's; a queued step is None where it raises."""

    def __init__(self) -> None:
        """Nobody is there."""
        self.requests: dict[str, PlainRequest] = {}
        self.queue: list[StepResult | None] = []
        self.commits: list[Commit] = []
        self.num_stale: int = 0

    def leave(self, request_id: str) -> None:
        """See `Ledger.leave`."""
        self.requests.pop(request_id, None)
        if not self.requests:
            self.queue.clear()

    def resolve(self) -> bool:
        """See `Ledger.resolve`; whether a step raised, and what is behind it is still queued."""
        while self.queue:
            step_result = self.queue.pop(0)
            if step_result is None:
                return True
            for result in step_result.results:
                self._apply(step_result.step, result)
        return False

    def advance_pending(self) -> bool:
        """See `Ledger.advance_pending`; whether a step raised, and no grammar was moved."""
        if self.resolve():
            return True
        for request in self.requests.values():
            request.advance()
        return False

    def _apply(self, step: int, result: RequestResult) -> None:
        request = self.requests.get(result.request_id)
        if request is None or step < request.joined or step <= request.last_step or request.finish is not None:
            self.num_stale += 1
            return
        request.last_step = step
        request.num_verify_steps += 1
        num_kept = request.keep(result.tokens, result.has_bonus)
        request.logprobs += (result.logprobs or ())[:num_kept]
        num_accepted = min(num_kept, len(result.tokens) - result.has_bonus)
        kept, is_over = result.tokens[:num_kept], request.finish is not None
        self.commits.append(Commit(result.request_id, kept, result.num_draft_tokens, num_accepted, is_over))


def compare(ledger: Ledger, plain: PlainLedger) -> None:
    """Raise unless a ledger says what the plain one says."""
    same("requests in flight", sorted(ledger.entries), sorted(plain.requests))
    same("is_resolved", ledger.is_resolved, not plain.queue)
    same("num_stale", ledger.num_stale, plain.num_stale)
    for name, request in plain.requests.items():
        entry = ledger.entries[name]
        found = entry.session.output
        expect(
            found == request.output,
            f"the output of {name!r} is {texts_of(found)}; expected {texts_of(request.output)}",
        )
        same(f"the history of {name!r}", entry.tokens, [*PROMPT, *request.output])
        same(f"the finish of {name!r}", entry.session.finish, request.finish)
        same(f"the logprobs of {name!r}", entry.logprobs, request.logprobs)
        same(f"num_verify_steps of {name!r}", entry.num_verify_steps, request.num_verify_steps)


def history_is(entry: Entry, tokens: Sequence[int], when: str) -> None:
    """Raise unless a request's books and its session say that just these tokens were committed."""
    found = entry.session.output
    expect(found == [*tokens], f"{when}, the output is {texts_of(found)}; expected {texts_of(tokens)}")
    same(f"{when}, the history", entry.tokens, [*PROMPT, *tokens])


def grammar_follows(entry: Entry, when: str) -> None:
    """Raise unless a request's grammar stands behind its output."""
    session = entry.session
    assert session.cursor is not None
    backend, grammar = compiled(GRAMMARS[0])
    fresh = backend.matcher(grammar)
    same("tokens that a fresh matcher takes", fresh.accept_prefix(session.output), len(session.output))
    found, expected = legal_ids(session.cursor.matcher), legal_ids(fresh)
    expect(
        found == expected,
        f"{when}, behind {texts_of(session.output)} the grammar allows {texts_of(found)}; a fresh matcher "
        f"allows {texts_of(expected)}",
    )
