"""What a walk calls at each node: a matcher's own unchecked calls where it has them, else the checked ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.protocols.abilities import SupportsUncheckedWalk, WalkCalls
from specgrammar.protocols.grammar import GrammarMatcher

CallsOver = Callable[[NDArray[np.int32]], WalkCalls]


def calls_of(matcher: GrammarMatcher) -> CallsOver:
    """The function that gives the calls of a matcher's walks over the rows of a bitmask; ask once a matcher."""
    if isinstance(matcher, SupportsUncheckedWalk):
        return matcher.walk_calls
    return lambda bitmask: _checked_calls(matcher, bitmask)


def _checked_calls(matcher: GrammarMatcher, bitmask: NDArray[np.int32]) -> WalkCalls:
    def accept(token: int) -> None:
        if not matcher.accept(token):
            raise refuses_its_own(token)

    def fill(row: int) -> None:
        with suppress(DeadEndError):  # the row is all zero then, and a walk looks at it
            matcher.fill_bitmask(bitmask, row)

    return WalkCalls(accept, fill, matcher.rollback)


def refuses_its_own(token: int) -> MatcherError:
    """The error for a matcher whose row and whose moves contradict each other."""
    return MatcherError(f"the grammar backend allows token id {token} in its row, but does not accept it")
