"""Checks of `GrammarGate`: of a detector that goes into `Request.grammar_start`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from specgrammar.protocols.gate import GrammarGate, SupportsImplicitStart
from specgrammar.testing.checks.base import Checks, CheckSkipped, Draw, Story, expect, explore, same

GATE_CHECKS = Checks("gate")

MakeGate = Callable[[], GrammarGate]


@GATE_CHECKS.add(invariant=10)
def check_the_given_output_opens_it(
    make: MakeGate, opened_by: Sequence[int], prompt: Sequence[int] = ()
) -> None:
    """The gate opens at the last token of an output that opens it, and at none before.

    Args:
        make: makes the gate.
        opened_by: ids of such an output; every check of gates draws from these.
        prompt: what comes before; for a gate that some prompts open one that does not.
    """
    gate = make()
    state: Any = gate.start(prompt)
    expect(
        not is_open(gate, state),
        f"the gate is open before the output, behind the prompt {list(prompt)}; give the check a prompt that "
        "leaves it closed",
    )
    for number, token in enumerate(opened_by, 1):
        state = gate.step(state, token)
        same(f"is_open behind {list(opened_by[:number])}", is_open(gate, state), number == len(opened_by))


@GATE_CHECKS.add(invariant=2)
def check_states_are_values(make: MakeGate, opened_by: Sequence[int], prompt: Sequence[int] = ()) -> None:
    """A state is hashable and never changes; what `step` returns depends on state and token alone."""

    def play(draw: Draw, story: Story) -> None:
        gate = make()
        state: Any = gate.start(prompt)
        for token in draw(_outputs(opened_by)):
            before = _value(state)
            story.tell(f"step({state!r}, {token})")
            behind = gate.step(state, token)
            expect(_value(state) == before, f"step changed the state that it was given to {state!r}")
            other = draw(st.sampled_from(list(opened_by)))
            story.tell(f"step({state!r}, {other}), for another path of the tree")
            gate.step(state, other)
            story.tell(f"step({state!r}, {token})")
            same("the same step behind another path", gate.step(state, token), behind)
            if is_open(gate, behind):
                return
            state = behind

    explore(play, max_examples=60)


@GATE_CHECKS.add(invariant=5)
def check_requests_do_not_see_each_other(
    make: MakeGate, opened_by: Sequence[int], prompt: Sequence[int] = ()
) -> None:
    """One gate serves several requests at once: each one's answers are those of the request alone."""

    def play(draw: Draw, story: Story) -> None:
        shared = make()
        outputs = [draw(_outputs(opened_by)) for _ in range(2)]
        story.tell(f"two requests write {outputs[0]} and {outputs[1]}, in turns")
        alone = [_answers(make(), output, prompt) for output in outputs]
        states: list[Any] = [shared.start(prompt) for _ in outputs]
        for place in range(max(map(len, alone))):
            for request, answers in enumerate(alone):
                if place < len(answers):
                    states[request] = shared.step(states[request], outputs[request][place])
                    what = f"request {request}: is_open behind {outputs[request][: place + 1]}"
                    same(what, is_open(shared, states[request]), answers[place])

    explore(play, max_examples=60)


@GATE_CHECKS.add(invariant=10)
def check_what_is_carried_was_read_and_declared(
    make: MakeGate, opened_by: Sequence[int], prompt: Sequence[int] = ()
) -> None:
    """`carried` returns the last tokens of the output, or `()`, and only what `starts` lists."""

    def play(draw: Draw, story: Story) -> None:
        gate = make()
        if not isinstance(gate, SupportsImplicitStart):
            raise CheckSkipped("it does not offer SupportsImplicitStart")
        starts = [tuple(start) for start in gate.starts]
        state: Any = gate.start(prompt)
        output: list[int] = []
        for token in draw(_outputs(opened_by)):
            state = gate.step(state, token)
            output.append(token)
            if is_open(gate, state):
                story.tell(f"the output {output} opened the gate; its starts are {starts}")
                carried = tuple(gate.carried(state))
                expect(
                    not carried or carried in starts, f"carried returns {carried}, which `starts` does not list"
                )
                same("what is carried", carried, tuple(output[len(output) - len(carried) :]))
                return

    explore(play, max_examples=60)


def is_open(gate: GrammarGate, state: Any) -> bool:
    """The gate's answer, which has to be a bool."""
    answer = gate.is_open(state)
    expect(isinstance(answer, bool), f"is_open returns {answer!r}; expected True or False")
    return answer


def _answers(gate: GrammarGate, output: Sequence[int], prompt: Sequence[int]) -> list[bool]:
    """`is_open` behind each token of an output, until it is open."""
    answers: list[bool] = []
    state: Any = gate.start(prompt)
    for token in output:
        state = gate.step(state, token)
        answers.append(is_open(gate, state))
        if answers[-1]:
            break
    return answers


def _value(state: Any) -> int:
    try:
        return hash(state)
    except TypeError:
        expect(False, f"the state {state!r} is not hashable, so it can change; return a tuple, say")
        raise


def _outputs(opened_by: Sequence[int]) -> st.SearchStrategy[list[int]]:
    """Its ids in any order, with all of an output that opens the gate among them."""
    ids = list(opened_by)
    pieces = st.sampled_from([*([token] for token in ids), ids])
    return st.lists(pieces, max_size=8).map(lambda drawn: [token for piece in drawn for token in piece])
