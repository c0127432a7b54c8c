"""What a ledger must say, kept in plain lists: the model that `check_any_order_of_calls` plays against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from hypothesis import strategies as st

from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import CompiledGrammar, GrammarSpec
from specgrammar.protocols.spec import Commit
from specgrammar.protocols.staging import Launched
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.checks.base import Draw, Story, expect, same
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import STOP, TEXTS, VOCABULARY, texts_of

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
        self.num_stale = 0

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


_STOPS = (
    StopRules(frozenset({STOP})),
    StopRules(frozenset({STOP}), max_new_tokens=4),
    StopRules(frozenset({STOP}), stop_strings=("cb",)),
)
_CALLS = (
    "publish",
    "publish",
    "publish",
    "resolve",
    "advance_pending",
    "take_commits",
    "join",
    "leave",
    "rejoin",
)


def play_any_order(ledger: Ledger, draw: Draw, story: Story) -> None:
    """Call a ledger and the plain one alike, in a drawn order, and compare them after each call."""
    device, plain, step = DelayedDevice(), PlainLedger(), 0
    away: dict[str, tuple[Entry, PlainRequest]] = {}
    for _ in range(draw(st.integers(1, 12))):
        call, name = draw(st.sampled_from(_CALLS)), draw(st.sampled_from("ab"))
        is_there = name in plain.requests
        if (call == "leave") != is_there and call in ("leave", "join", "rejoin"):
            call = "leave" if is_there else "join"
        if call == "publish":
            _publish(ledger, plain, device, step, draw, story)
            step += 1
        elif call == "join" or (call == "rejoin" and name not in away):
            has_grammar, stops = draw(st.booleans()), draw(st.sampled_from(_STOPS))
            story.tell(f"join({name!r}) at step {step}{', with a grammar' if has_grammar else ''}, {stops}")
            ledger.join(name, PROMPT, session_for(LETTERS if has_grammar else None, stops), step)
            plain.requests[name] = PlainRequest(has_grammar, stops, step)
        elif call == "leave":
            story.tell(f"leave({name!r})")
            if plain.requests[name].finish is None:
                away[name] = (ledger.entries[name], plain.requests[name])
            ledger.leave(name)
            plain.leave(name)
        elif call == "rejoin":
            story.tell(f"rejoin({name!r}) at step {step}")
            entry, plain.requests[name] = away.pop(name)
            plain.requests[name].joined = step
            ledger.rejoin(name, entry, step)
        elif call == "take_commits":
            story.tell(call)
            same("take_commits()", ledger.take_commits(), plain.commits)
            plain.commits = []
        else:
            raised = plain.resolve() if call == "resolve" else plain.advance_pending()
            story.tell(f"{call}, which has to raise" if raised else call)
            try:
                getattr(ledger, call)()
                expect(not raised, f"{call} did not raise what a step raised")
            except StepFailedError:
                expect(raised, f"{call} raised what no step, or an earlier call, has raised")
        compare(ledger, plain)


def _publish(
    ledger: Ledger, plain: PlainLedger, device: DelayedDevice, step: int, draw: Draw, story: Story
) -> None:
    """Publish a step, or an older one again, where there is somebody to publish it for."""
    if not plain.requests:
        return
    if draw(st.integers(0, 5)) == 5:
        story.tell(f"publish step {step}, which raises")
        ledger.publish(Outcome(fail))
        plain.queue.append(None)
        return
    stamp = step - draw(st.sampled_from([0, 0, 0, 1, 2]))
    token = st.sampled_from([A, B, C, A, B, C, STOP, BRACE, -1])
    results = []
    for name in draw(st.sampled_from(["a", "ab", "b", "bax"])):
        tokens = draw(st.lists(token, min_size=1, max_size=4))
        has_bonus = draw(st.integers(0, 5)) < 5
        results.append(RequestResult(name, tuple(tokens), 4, has_bonus, tuple(map(float, range(len(tokens))))))
    is_late = draw(st.booleans())
    blocks = "; ".join(
        f"{result.request_id!r} {texts_of(result.tokens)}{'' if result.has_bonus else ' without a bonus token'}"
        for result in results
    )
    story.tell(f"publish step {stamp}{', which is on its way' if is_late else ''}: {blocks}")
    ledger.publish(late(device, stamp, *results) if is_late else known(stamp, *results))
    plain.queue.append(StepResult(stamp, tuple(results)))
