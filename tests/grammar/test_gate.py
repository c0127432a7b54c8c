"""The gate against the obvious definition: the marker occurs somewhere in what was read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Gate

few_ids = st.integers(0, 2)  # few, so that markers overlap themselves and break off often


@given(st.lists(few_ids, min_size=1, max_size=5), st.lists(few_ids, max_size=40))
def test_the_gate_opens_exactly_at_the_end_of_the_first_occurrence(
    marker: list[int], stream: list[int]
) -> None:
    gate = Gate(marker)
    state = 0
    for end, token in enumerate(stream, 1):
        state = gate.step(state, token)
        seen = any(stream[i : i + len(marker)] == marker for i in range(end - len(marker) + 1))
        assert (state == gate.open_state) == seen


@given(
    st.lists(few_ids, min_size=1, max_size=4), st.lists(few_ids, max_size=12), st.lists(few_ids, max_size=12)
)
def test_a_state_kept_from_before_restores_the_gate(
    marker: list[int], shared: list[int], tail: list[int]
) -> None:
    gate = Gate(marker)
    state = 0
    for token in shared:
        state = gate.step(state, token)
    kept = state
    for token in tail:
        state = gate.step(state, token)
    again = kept
    for token in tail:
        again = gate.step(again, token)
    assert again == state


@pytest.mark.parametrize("marker", [[], [-1], [3, -1], [1.5], [True], "ab", 3])
def test_impossible_markers_are_refused(marker: Any) -> None:
    with pytest.raises(ConfigError, match=r"^gate: marker.* expected .*token id"):
        Gate(marker)
