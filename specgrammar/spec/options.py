"""Checks of an algorithm's options, so that a bad one is refused before there is a decode loop."""

from __future__ import annotations

from specgrammar.checks import check_int
from specgrammar.errors import ConfigError


def check_match_lengths(algorithm: str, min_match: int, max_match: int) -> None:
    """Refuse lengths of suffix matches that are not `1 <= min_match <= max_match`."""
    check_int(f"{algorithm}: min_match", min_match, 1)
    check_int(f"{algorithm}: max_match", max_match, 1)
    if min_match > max_match:
        raise ConfigError(f"{algorithm}: min_match = {min_match}; expected at most max_match = {max_match}")
