"""Calls of a ledger in any order, with the plain one beside it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from specgrammar.grammar.stops import StopRules
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.checks.base import Draw, Story, expect, same
from specgrammar.testing.checks.plain_ledger import (
    BRACE,
    LETTERS,
    PROMPT,
    A,
    B,
    C,
    PlainLedger,
    PlainRequest,
    StepFailedError,
    compare,
    fail,
    known,
    late,
    session_for,
)
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toys import STOP, texts_of


def _result(request_id: str, tokens: list[int], has_bonus: bool) -> RequestResult:
    return RequestResult(request_id, tuple(tokens), 4, has_bonus, tuple(map(float, range(len(tokens)))))


def _told(result: RequestResult) -> str:
    bonus = "" if result.has_bonus else " without a bonus token"
    return f"{result.request_id!r} {texts_of(result.tokens)}{bonus}"


_STOPS = (
    StopRules(frozenset({STOP})),
    StopRules(frozenset({STOP}), max_new_tokens=4),
    StopRules(frozenset({STOP}), stop_strings=("cb",)),
)
_TOKENS = st.lists(st.sampled_from([A, B, C, A, B, C, STOP, BRACE, -1]), min_size=1, max_size=3)
_RESULT = st.builds(_result, st.sampled_from("aabbx"), _TOKENS, st.sampled_from([True, True, True, False]))
_STATES = st.sampled_from(["known", "late", "raising", "known", "late"])
_PUBLISH = st.tuples(
    st.just("publish"), st.lists(_RESULT, min_size=1, max_size=2), _STATES, st.sampled_from([0, 0, 1, 2])
)
_COMING = st.tuples(
    st.sampled_from(["leave", "come"]), st.sampled_from("ab"), st.sampled_from(_STOPS), st.booleans()
)
_MOVES = st.tuples(st.sampled_from(["resolve", "advance_pending", "take_commits"]))
CALLS = st.lists(st.one_of(_PUBLISH, _MOVES, _PUBLISH, _COMING), max_size=20)
"""What may be called, in any order."""


class Play:
    """A ledger and the plain one, called alike; the request `a` is there from the start."""

    def __init__(self, ledger: Ledger, story: Story) -> None:
        """Both are empty before."""
        self.ledger: Ledger = ledger
        self.plain: PlainLedger = PlainLedger()
        self.story: Story = story
        self._device, self._step = DelayedDevice(), 0
        self._away: dict[str, tuple[Entry, PlainRequest]] = {}
        self.come("a", _STOPS[0], has_grammar=False)

    def call(self, name: str, *given: Any) -> None:
        """Make a call of both, if it may be made, and compare them."""
        if hasattr(self, name):
            getattr(self, name)(*given)
        else:
            self._move(name)
        compare(self.ledger, self.plain)

    def publish(self, results: list[RequestResult], state: str, age: int) -> None:
        """Publish a step, or with `age` an older one again."""
        if not self.plain.requests:
            return  # nobody would ask for it
        step, self._step = self._step - age, self._step + 1
        if state == "raising":
            self.story.tell(f"publish step {step}, which raises")
            self.ledger.publish(Outcome(fail))
            self.plain.queue.append(None)
            return
        self.story.tell(f"publish step {step}, which is {state}: {'; '.join(map(_told, results))}")
        is_late = state == "late"
        self.ledger.publish(late(self._device, step, *results) if is_late else known(step, *results))
        self.plain.queue.append(StepResult(step, tuple(results)))

    def come(self, name: str, stops: StopRules, has_grammar: bool) -> None:
        """Join, or come back after a break."""
        if name in self.plain.requests:
            return
        if name in self._away:
            self.story.tell(f"rejoin({name!r}) at step {self._step}")
            entry, request = self._away.pop(name)
            request.joined = self._step
            self.ledger.rejoin(name, entry, self._step)
        else:
            grammar = ", with a grammar" if has_grammar else ""
            self.story.tell(f"join({name!r}) at step {self._step}{grammar}, {stops}")
            session = session_for(LETTERS if has_grammar else None, stops)
            self.ledger.join(name, PROMPT, session, self._step)
            request = PlainRequest(has_grammar, stops, self._step)
        self.plain.requests[name] = request

    def leave(self, name: str, *_: object) -> None:
        """Leave; a request that has not ended may come back."""
        request = self.plain.requests.get(name)
        self.story.tell(f"leave({name!r})")
        if request is not None and request.finish is None:
            self._away[name] = (self.ledger.entries[name], request)
        self.ledger.leave(name)
        self.plain.leave(name)

    def take_commits(self) -> None:
        """Compare what was committed."""
        self.story.tell("take_commits")
        same("take_commits()", self.ledger.take_commits(), self.plain.commits)
        self.plain.commits = []

    def _move(self, name: str) -> None:
        raises: bool = getattr(self.plain, name)()
        self.story.tell(f"{name}, which has to raise" if raises else name)
        try:
            getattr(self.ledger, name)()
        except StepFailedError:
            expect(raises, f"{name} raised what no step raised, or what was told before")
        else:
            expect(not raises, f"{name} did not raise what a step raised")


def play_any_order(ledger: Ledger, draw: Draw, story: Story) -> None:
    """Call a ledger and the plain one alike, in a drawn order."""
    play = Play(ledger, story)
    for name, *given in draw(CALLS):
        play.call(str(name), *given)
    play.call("take_commits")
