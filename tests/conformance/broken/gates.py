"""Gates that are each broken in one way, and the right one that they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrammar.testing.checks.gate import GATE_CHECKS
from tests.conformance.cases import Broken

OPENED_BY = (6, 0, 1)


class CallGate:
    """Opens at the ids 0, 1, with which the grammar begins; the state is how many of them are read."""

    starts: Any = ((0, 1),)

    def start(self, _prompt_tokens: Sequence[int]) -> Any:
        return 0

    def step(self, state: Any, token: int) -> Any:
        return 2 if (state, token) == (1, 1) else int(token == 0)

    def is_open(self, state: Any) -> Any:
        return state == 2

    def carried(self, _state: Any) -> tuple[int, ...]:
        return (0, 1)


class KeepsItsPlace(CallGate):
    """Counts in itself, where all paths and requests count."""

    read = 0

    def step(self, state: Any, token: int) -> Any:
        self.read = super().step(self.read, token)
        return self.read if state != 2 else 2


class GrowsAList(CallGate):
    """Appends to the state that it was given."""

    def start(self, _prompt_tokens: Sequence[int]) -> Any:
        return [0]

    def step(self, state: Any, token: int) -> Any:
        state.append(super().step(state[-1], token))
        return state

    def is_open(self, state: Any) -> Any:
        return super().is_open(state[-1])


class GrowsInside(CallGate):
    """Its state is hashable by its name, and changes."""

    class State:
        def __init__(self, read: int) -> None:
            self.read = read

        def __eq__(self, other: object) -> bool:
            return isinstance(other, GrowsInside.State) and other.read == self.read

        def __hash__(self) -> int:
            return self.read

        def __repr__(self) -> str:
            return f"State({self.read})"

    def start(self, _prompt_tokens: Sequence[int]) -> Any:
        return self.State(0)

    def step(self, state: Any, token: int) -> Any:
        behind = self.State(super().step(state.read, token))
        state.read += 1
        return behind

    def is_open(self, state: Any) -> Any:
        return super().is_open(state.read)


class AnswersWithANumber(CallGate):
    """Truthy is not True."""

    def is_open(self, state: Any) -> Any:
        return state // 2


class CarriesTheBegin(CallGate):
    """All but the token that opened it."""

    starts = ((0,), (0, 1))

    def carried(self, _state: Any) -> tuple[int, ...]:
        return (0,)


class DeclaresNothing(CallGate):
    """What it carries is not tried before the request starts."""

    starts = ()


class OpensTooEarly(CallGate):
    """At the first token of the call."""

    def is_open(self, state: Any) -> Any:
        return state >= 1


class SharesItsPlace(CallGate):
    """Remembers the last token that anybody read, to see the marker across two calls."""

    last = -1

    def step(self, state: Any, token: int) -> Any:
        before, self.last = self.last, token
        return 2 if (before, token) == (0, 1) else super().step(state, token)


def _broken(make: type[CallGate], fault: str, check: str, finds: str) -> Broken:
    return Broken(fault, GATE_CHECKS, make, check, finds, {"opened_by": OPENED_BY})


BROKEN_GATES = [
    _broken(
        KeepsItsPlace,
        "a gate counts in itself",
        "check_states_are_values",
        "the same step behind another path is",
    ),
    _broken(GrowsAList, "a gate's state is a list", "check_states_are_values", r"\[0\] is not hashable"),
    _broken(
        GrowsInside,
        "a gate changes a state",
        "check_states_are_values",
        "step changed the state that it was given",
    ),
    _broken(
        AnswersWithANumber,
        "a gate answers 1",
        "check_the_given_output_opens_it",
        "is_open returns 0; expected True",
    ),
    _broken(
        CarriesTheBegin,
        "a gate forgets the token that opened it",
        "check_what_is_carried_was_read_and_declared",
        r"what is carried is \(0,\); expected \(1,\)",
    ),
    _broken(
        DeclaresNothing,
        "a gate carries what it does not declare",
        "check_what_is_carried_was_read_and_declared",
        r"carried returns \(0, 1\), which `starts` does not list",
    ),
    _broken(
        OpensTooEarly,
        "a gate opens in the middle of its marker",
        "check_the_given_output_opens_it",
        r"is_open behind \[6, 0\] is True; expected False",
    ),
    _broken(
        SharesItsPlace,
        "a gate remembers the last token of any request",
        "check_requests_do_not_see_each_other",
        r"request \d: is_open behind .* is (True|False); expected",
    ),
]
