"""`Markers` against the obvious definition: which marker ends first in what was read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Marker, Markers

few_ids = st.integers(0, 2)  # few, so that markers overlap themselves and each other, and break off often
markers = st.lists(few_ids, min_size=1, max_size=5).map(tuple)


@st.composite
def gates(draw: st.DrawFn) -> Markers:
    """Of one to four markers, each of which can be the first to be complete."""
    drawn = draw(st.lists(markers, min_size=1, max_size=4, unique=True))
    kept = [one for one in drawn if all(one == other or not inside(other, one[:-1]) for other in drawn)]
    num_after = draw(st.integers(0, len(kept)))
    return Markers(after=tuple(kept[:num_after]), at=tuple(kept[num_after:]))


def inside(marker: Marker, stream: Marker) -> bool:
    return any(stream[i : i + len(marker)] == marker for i in range(len(stream)))


def opened_by(gate: Markers, stream: list[int]) -> Marker | None:
    """The longest marker that ends where the first one ends; None where none is complete."""
    for end in range(1, len(stream) + 1):
        ending = [m for m in gate.in_output if tuple(stream[max(0, end - len(m)) : end]) == m]
        if ending:
            return max(ending, key=len)
    return None


@given(gates(), st.lists(few_ids, max_size=30))
def test_the_gate_opens_at_the_end_of_the_first_marker_that_is_complete(
    gate: Markers, stream: list[int]
) -> None:
    state = gate.start(())
    for end, token in enumerate(stream, 1):
        state = gate.step(state, token)
        marker = opened_by(gate, stream[:end])
        assert gate.is_open(state) == (marker is not None)
        if marker is not None:
            assert gate.carried(state) == (marker if marker in gate.at else ())
            return


@given(gates(), st.lists(few_ids, max_size=12), st.lists(few_ids, max_size=12))
def test_a_state_kept_from_before_restores_the_gate(gate: Markers, shared: list[int], tail: list[int]) -> None:
    state = gate.start(())
    for token in shared:
        state = gate.step(state, token)
    ends = []
    for _ in range(2):
        again = state
        for token in tail:
            again = gate.step(again, token)
        ends.append(again)
    assert ends[0] == ends[1]


@given(st.lists(few_ids, max_size=12), markers, markers.map(lambda m: (*m, 3)))
def test_the_prompt_counts_only_where_it_is_said(prompt: list[int], marker: Marker, begin: Marker) -> None:
    assert not (silent := Markers(after=(marker,))).is_open(silent.start(prompt))
    found = inside(marker, tuple(prompt))
    assert (gate := Markers(after=(marker,), in_prompt=True)).is_open(gate.start(prompt)) == found
    assert gate.carried(gate.start(prompt)) == ()
    closes = Markers(after=(marker,), in_prompt=True, resets=(begin,))
    assert closes.is_open(closes.start(prompt)) == found
    assert not closes.is_open(closes.start([*prompt, *begin])), "a block that has begun again"
    assert closes.is_open(closes.start([*prompt, *begin, 5, *marker, 5])), "and ended"


def test_an_implicit_marker_in_the_prompt_is_not_the_outputs() -> None:
    gate = Markers(after=[[1]], at=[[2]], in_prompt=True)  # type: ignore[arg-type]  # any sequences
    assert (gate.after, gate.at, gate.starts) == (((1,),), ((2,),), ((2,),))
    assert not gate.is_open(gate.start([2]))
    assert gate.is_open(gate.step(gate.start([2]), 2))


def test_no_marker_is_split_over_prompt_and_output() -> None:
    gate = Markers(after=((1, 2),), in_prompt=True)
    assert not gate.is_open(gate.step(gate.start([1]), 2))


@pytest.mark.parametrize("marker", [[], [-1], [3, -1], [1.5], [True], "ab", 3])
def test_impossible_markers_are_refused(marker: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Markers: at\[1\].* expected .*token id"):
        Markers(after=((7,),), at=((4,), marker))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no marker opens the grammar"),
        ({"after": (3, 4)}, r"after\[0\] = 3; expected a sequence of token ids"),
        ({"after": 3}, "after = 3; expected a sequence of markers"),
        ({"after": ((3,), (4,)), "at": ((3,),)}, r"\[3\] is given twice"),
        ({"after": ((3,),), "at": ((4, 3, 5),)}, r"\[4, 3, 5\] is never complete, since \[3\] comes before"),
        ({"after": ((3,), (3, 4))}, r"\[3, 4\] is never complete, since \[3\] comes before its end"),
        ({"after": ((3,),), "resets": ((4,),)}, "set in_prompt=True"),
        ({"after": ((3,),), "in_prompt": 1}, "in_prompt = 1; expected True or False"),
    ],
)
def test_markers_that_cannot_be_meant_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^Markers: .*{words}"):
        Markers(**given)


def test_a_gate_is_a_value() -> None:
    assert Markers(after=((1,),)) == Markers(after=[[1]])  # type: ignore[arg-type]  # any sequences
    assert len({Markers(after=((1,),)), Markers(after=((1,),)), Markers(at=((1,),))}) == 2
