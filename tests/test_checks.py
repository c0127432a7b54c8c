"""Checks of values: what passes, and that a refusal can always be shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.checks import check_choice, check_int, check_number, check_text, show, texts, token_ids
from specgrammar.errors import ConfigError

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63, 2**1200),
    st.floats(),
    st.text(),
    st.characters(categories=["Cs"]),
    st.binary(),
    st.lists(st.integers()),
    st.just(10**5_000),
)


def passes(check: Callable[[], object]) -> bool:
    try:
        check()
    except ConfigError as error:
        str(error).encode()
        return False
    return True


def holds(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@given(anything, st.integers(-5, 5), st.integers(0, 2**70))
def test_an_int_in_its_bounds_is_all_that_passes(value: object, minimum: int, more: int) -> None:
    good = type(value) is int and minimum <= value <= minimum + more
    assert passes(lambda: check_int("x", value, minimum, minimum + more)) == good


@given(anything, st.booleans())
def test_a_finite_number_in_its_bounds_is_all_that_passes(value: object, above: bool) -> None:
    number = type(value) in (int, float)
    positive = isinstance(value, int | float) and number and (value > 0 or (value == 0 and not above))
    assert passes(lambda: check_number("x", value, 0, above=above)) == (positive and holds(value))
    inside = isinstance(value, int | float) and positive and value <= 7
    assert passes(lambda: check_number("x", value, 0, 7, above=above)) == inside


@given(anything, st.booleans())
def test_text_that_can_be_written_is_all_that_passes(value: object, empty: bool) -> None:
    good = (
        isinstance(value, str) and (empty or value != "") and not any("\ud800" <= c <= "\udfff" for c in value)
    )
    assert passes(lambda: check_text("x", value, empty=empty)) == good


@given(anything, st.sampled_from([None, 0]))
def test_token_ids_become_a_tuple_of_ints(values: object, minimum: int | None) -> None:
    good = isinstance(values, list) and (minimum is None or min(values, default=0) >= 0)
    assert passes(lambda: token_ids("x", values, minimum)) == good
    if good and isinstance(values, list):
        assert token_ids("x", np.array(values, dtype=object), minimum) == tuple(values)


def test_token_ids_of_numpy_become_python_ints() -> None:
    (found,) = token_ids("x", np.array([3], dtype=np.int64))
    assert type(found) is int


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: token_ids("x", "abc"), "x = 'abc'; expected a sequence of token ids"),
        (lambda: token_ids("x", 3), "x = 3; expected a sequence of token ids"),
        (lambda: token_ids("x", [1, True]), r"x\[1\] = True; expected a token id, an integer"),
        (lambda: token_ids("x", [1, 2.0]), r"x\[1\] = 2.0; expected a token id, an integer"),
        (lambda: token_ids("x", [1, -1]), r"x\[1\] = -1; expected a token id >= 0"),
        (lambda: texts("x", "abc"), "x = 'abc'; expected a sequence of strings"),
        (lambda: texts("x", ["a", ""]), r"x\[1\] = ''; expected text that is not empty"),
        (lambda: texts("x", ["a", b"b"]), r"x\[1\] = b'b'; expected text"),
        (lambda: texts("x", ["a", "b\udcff"]), r"x\[1\] = 'b\\udcff'; expected UTF-8; character 1"),
        (lambda: check_int("x", 10**5_000, 0), "x = int that cannot be shown; expected an integer >= 0"),
        (lambda: check_int("x", 3, 4, 5), "x = 3; expected an integer >= 4 and <= 5"),
        (lambda: check_number("x", 2.5, 0, 1, above=True), "x = 2.5; expected a number > 0 and <= 1"),
        (lambda: check_number("x", "1", 0), "x = '1'; expected a number >= 0$"),
        (lambda: check_choice("x", 1, (True, "a")), "x = 1; expected True or 'a'"),
    ],
)
def test_a_refusal_says_what_was_expected(check: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + message):
        check()


def test_a_long_value_is_cut() -> None:
    assert show("a" * 1_000) == "'" + "a" * 79 + "..."
