"""Checks of an algorithm's options, so that a bad one is refused before there is a decode loop."""

from __future__ import annotations

from collections.abc import Sequence

from specgrammar.errors import ConfigError


def check_count(algorithm: str, option: str, value: object, minimum: int = 1) -> None:
    """Refuse a `value` that is not an int of at least `minimum`."""
    # bool is an int to Python; `breadth = true` in a config is a mistake.
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"{algorithm}: {option} = {value!r}; expected an integer >= {minimum}")


def check_choice(algorithm: str, option: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a `value` that is none of `choices`, also one of another type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        expected = " or ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{algorithm}: {option} = {value!r}; expected {expected}")


def check_match_lengths(algorithm: str, min_match: int, max_match: int) -> None:
    """Refuse lengths of suffix matches that are not `1 <= min_match <= max_match`."""
    check_count(algorithm, "min_match", min_match)
    check_count(algorithm, "max_match", max_match)
    if min_match > max_match:
        raise ConfigError(f"{algorithm}: min_match = {min_match}; expected at most max_match = {max_match}")
