"""The requests of a native call: who is taken, in which order they are walked, and what is refused."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import MatcherError
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.native_batch import NativeBatch, _Taken, packed
from specgrammar.grammar.native_walk import walk_batch
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import NativeCalls
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.toys import GRAMMARS
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.walks import Always, matcher, session, walked

A = TWO_WORDS.tokens.index(b"a")
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


class Asked(CalledBack):
    """Counts how often it is asked; raises behind a stop token, as a plugin may."""

    num_asked = 0

    def native_calls(self) -> NativeCalls | None:
        self.num_asked += 1
        if self._finished:
            raise MatcherError("asked behind a stop token")
        return super().native_calls()


def test_a_request_that_has_ended_is_not_asked() -> None:
    one = session("native", GrammarSpec.regex("a"), Asked)
    assert one.cursor is not None
    matcher: Any = one.cursor.matcher
    assert matcher.num_asked == 1
    one.commit([A])
    assert matcher.num_asked == 2
    one.commit([TWO_WORDS.stop_ids[0]])
    assert matcher.num_asked == 2
    assert (one.finish, one.error) == ("stop", None)
    assert one.native_calls() is None


def test_there_are_calls_behind_the_gate_and_not_before() -> None:
    gate = Markers(after=((A,),))
    one = GrammarSession(TWO_WORDS, matcher(CalledBack, GrammarSpec.regex("(ab)*")), gate=gate)
    assert one.native_calls() is None
    one.commit([A])
    assert one.engaged
    calls = one.native_calls()
    assert calls is not None
    one.follow([A])
    one.advance()  # takes it back
    assert one.native_calls() == calls
    one.abort()
    assert one.native_calls() is None


def test_there_are_none_where_a_stop_token_did_not_end_the_request() -> None:
    stops = StopRules(frozenset())
    one = GrammarSession(TWO_WORDS, matcher(CalledBack, GrammarSpec.regex("a?")), stops=stops)
    assert one.native_calls() is not None
    one.commit([TWO_WORDS.stop_ids[0]])
    assert one.finish is None
    assert one.native_calls() is None


def test_an_engine_that_moves_the_matcher_itself_says_so() -> None:
    one = session("native", GrammarSpec.regex("a?"))
    assert one.cursor is not None
    calls = one.native_calls()
    one.cursor.matcher.accept(TWO_WORDS.stop_ids[0])
    one.matcher_moved()
    assert one.native_calls() is None
    one.cursor.matcher.rollback(1)
    one.matcher_moved()
    assert one.native_calls() == calls


class Roused(FillWorkers):
    """Notes what is woken, and what runs."""

    def __init__(self) -> None:
        super().__init__(2)
        self.seen: list[tuple[str, int]] = []
        self._pool.rouse = lambda num_threads: self.seen.append(("rouse", num_threads))  # type: ignore[method-assign]

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:  # noqa: ARG002
        return 2

    def run(self, work: Any, num_nodes: int, kind: str = "walk", num_threads: int | None = None) -> None:
        self.seen.append(("run", num_threads or 0))
        super().run(work, num_nodes, kind, num_threads)


@pytest.mark.parametrize(
    ("kinds", "seen"),
    [
        (["native", "native"], [("rouse", 2), ("run", 2)]),
        (["free", "native"], [("rouse", 2), ("run", 2)]),
        (["gated", "free", "python", "over"], []),
    ],
)
def test_threads_are_woken_for_calls_that_come(kinds: list[str], seen: list[tuple[str, int]]) -> None:
    workers = Roused()
    batch = [session(kind, GRAMMARS[3]) for kind in kinds]
    walked(batch, HostTree.roots([0] * len(kinds)), workers=workers)
    assert workers.seen == seen


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


@given(st.integers(1, 12), st.integers(0, 2**31))
@settings(max_examples=60)
def test_threads_hand_out_as_many_rows_as_one(num_requests: int, seed: int) -> None:
    """They take a few at a time; what they did not need is no row of the step. Here most drafts are illegal."""
    rng = np.random.default_rng(seed)
    tree = HostTree.from_chains(
        [[0, *rng.choice([A, A, 39, 1], rng.integers(0, 20))] for _ in range(num_requests)]
    )
    counts = set()
    for num_threads in (1, 2, 3, 8):
        batch = [session("native", GrammarSpec.regex("a*")) for _ in range(num_requests)]
        natives = [one.native_calls() for one in batch]
        rows = MaskRows(
            np.zeros((tree.num_nodes, TWO_WORDS.num_words), np.int32),
            tree.num_nodes,
            np.zeros(tree.num_nodes, np.int32),
        )
        workers = Always(num_threads)
        found = walk_batch(NativeBatch(tree, TWO_WORDS, natives), rows, num_threads, workers._pool.handle)
        live = np.flatnonzero(rows.status == NodeStatus.LIVE)
        assert sorted(rows.owners[: rows.num_rows].tolist()) == live.tolist()
        counts.add((found, rows.num_rows, len(live)))
    assert len(counts) == 1
    assert len(set(counts.pop())) == 1


@pytest.mark.parametrize("text", [b"x" * 1000, b"", b" \n", b"two\nlines"])
def test_a_reason_may_be_of_any_length_and_is_asked_for_once(text: bytes) -> None:
    class Talks(CalledBack):
        def native_fill(self, row: Any) -> None:  # noqa: ARG002
            raise RuntimeError(text.decode())

    one = session("native", GRAMMARS[3], Talks)
    rows = MaskRows(np.zeros((1, TWO_WORDS.num_words), np.int32), 1, np.zeros(1, np.int32))
    batch = NativeBatch(HostTree.roots([0]), TWO_WORDS, [one.native_calls()])
    walk_batch(batch, rows)
    ((index, error),) = batch.failures()
    said = str(error).removeprefix("the grammar backend failed in native code: ")
    assert index == 0
    assert said == {b"": "it gave no reason", b" \n": "it gave no reason", b"two\nlines": "two lines"}.get(
        text, "x" * 399
    )
    assert batch.failures() == []


def test_what_is_known_of_a_batch_is_not_taken_for_another_one() -> None:
    """Batches with one first request, in turns with more of others than are kept."""
    calls = [packed(NativeCalls(1, matcher)) for matcher in range(40)]
    batches: list[list[bytes | None]] = [
        [calls[0], calls[1]],
        [calls[0]],
        [calls[0], None, calls[1]],
        [None, calls[0]],
        [None],
        [],
    ]
    batches += [[one, None] for one in calls[2:]]
    for _ in range(2):
        for natives in batches:
            batch = NativeBatch(HostTree.roots([0] * len(natives)), TWO_WORDS, [*natives])
            numbers = [number for number, native in enumerate(natives) if native]
            assert list(batch.numbers) == numbers
            assert batch.others() == [number for number in range(len(natives)) if number not in numbers]
            assert batch._taken.natives.tobytes() == b"".join(native for native in natives if native)


def test_batches_of_several_threads_are_kept_apart() -> None:
    wrong = list[str]()

    def takes(thread: int) -> None:
        try:
            for step in range(4000):
                native = packed(NativeCalls(1, 1000 + (8 * step + thread) % 200, 5))
                if _Taken.of([native]).natives.tobytes() != native:
                    wrong.append("another one's")
        except Exception as error:
            wrong.append(repr(error))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=takes, args=(thread,)) for thread in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_of_requests_that_share_a_matcher_the_first_is_taken() -> None:
    def calls(matcher: int) -> bytes:
        return packed(NativeCalls(1, matcher))

    tree = HostTree.roots([0] * 6)
    other_table, other_grammar = packed(NativeCalls(8, 3)), packed(NativeCalls(1, 2, 5))
    batch = NativeBatch(tree, TWO_WORDS, [None, calls(3), calls(2), None, other_table, other_grammar])
    assert list(batch.numbers) == [1, 2]
    assert batch.others() == [0, 3, 4, 5]
    assert NativeBatch(tree, TWO_WORDS, [calls(number) for number in range(6)]).others() == []
