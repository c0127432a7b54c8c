"""The requests of a native call: who is taken, in which order they are walked, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.native_batch import NativeBatch, packed
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.walks import Always, session, walked

NONSENSE = [
    (1, 2),
    (1, 2, 0),
    NativeCalls("1", 2),  # type: ignore[arg-type]
    NativeCalls(1.5, 2),  # type: ignore[arg-type]
    NativeCalls(-1, 2),
    NativeCalls(1, 1 << 64),
    "calls",
    7,
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
def test_what_is_no_calls_fails_its_own_request(nonsense: Any) -> None:
    class Talks(CalledBack):
        def native_calls(self) -> NativeCalls | None:
            return nonsense  # type: ignore[no-any-return]

    batch = [session("native", GRAMMARS[3]), session("native", GRAMMARS[3], Talks)]
    found = walked(batch, HostTree.roots([0, 0]))
    assert found.errors[0] == ""
    assert found.errors[1].startswith(f"native_calls gave {nonsense!r}; expected NativeCalls")
    assert isinstance(batch[1].error, MatcherError)


def test_calls_that_become_nonsense_fail_their_request_when_it_moves() -> None:
    class Changes(CalledBack):
        num_asked = 0

        def native_calls(self) -> NativeCalls | None:
            self.num_asked += 1
            return super().native_calls() if self.num_asked == 1 else NativeCalls(-1, 2)

    one = session("native", GRAMMARS[3], Changes)
    assert one.native_calls() is not None
    one.commit([0])
    assert "native_calls gave NativeCalls(calls=-1" in str(one.error)


def numbered(grammars: Sequence[int]) -> tuple[list[GrammarSession], list[int]]:
    """Requests whose matchers say that they are of some grammars; and the order in which they are filled."""
    filled = list[int]()

    class Tells(CalledBack):
        grammar = number = 0

        def native_calls(self) -> NativeCalls | None:
            calls = super().native_calls()
            return calls and calls._replace(grammar=self.grammar)

        def native_fill(self, row: NDArray[np.int32]) -> None:
            filled.append(self.number)
            super().native_fill(row)

    made = []
    for number, grammar in enumerate(grammars):
        one = session("native", GRAMMARS[3], Tells)
        assert one.cursor is not None
        matcher: Any = one.cursor.matcher
        matcher.grammar, matcher.number = grammar, number
        made.append(GrammarSession(TWO_WORDS, matcher))
    return made, filled


@pytest.mark.parametrize(
    ("grammars", "order"),
    [
        ([], []),
        ([5], [0]),
        ([0, 0, 0], [0, 1, 2]),
        ([9, 4, 9, 1, 4, 9], [0, 2, 5, 1, 4, 3]),
        ([(1 << 64) - 1, 0, (1 << 64) - 1], [0, 2, 1]),
    ],
)
def test_requests_of_one_grammar_are_walked_behind_the_first_of_them(
    grammars: list[int], order: list[int]
) -> None:
    batch, filled = numbered(grammars)
    walked(batch, HostTree.roots([0] * len(batch)))
    assert filled == order


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_requests", [1, 2, 5, 16])
def test_threads_walk_each_request_once(num_requests: int, num_threads: int) -> None:
    batch, filled = numbered([number % 3 for number in range(num_requests)])
    workers = Always(num_threads)
    for _ in range(20):
        filled.clear()
        found = walked(batch, HostTree.roots([0] * num_requests), workers=workers)
        assert Counter(filled) == Counter(range(num_requests))
        assert found.errors == [""] * num_requests


def test_of_requests_that_share_a_matcher_the_first_is_taken() -> None:
    def calls(matcher: int) -> bytes:
        return packed(NativeCalls(1, matcher))

    tree = HostTree.roots([0] * 6)
    batch = NativeBatch(tree, TWO_WORDS, [None, calls(3), calls(2), None, calls(3), calls(2)])
    assert list(batch.numbers) == [1, 2]
    assert batch.others() == [0, 3, 4, 5]
    assert NativeBatch(tree, TWO_WORDS, [calls(number) for number in range(6)]).others() == []
