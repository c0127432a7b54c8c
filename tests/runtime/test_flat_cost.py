"""What a step does must not depend on how much was written before, by its request or by earlier ones."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.footprint import footprint
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import FinishReason, StopRules
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime.ledger import Entry, Ledger
from specgrammar.spec.none import RootProducer
from specgrammar.spec.sampling import MaskPolicyChoice
from specgrammar.trees.tree import DraftTree
from tests.runtime.costs import Bench, cost_of

EARLY, LATE = 100, 5_000
NUM_EARLIER = 10, 500
NUM_STEPS = 34

SETUPS: list[tuple[str, str, MaskPolicyChoice]] = [
    ("xgrammar", "none", "lazy"),
    ("llguidance", "none", "eager"),
    ("xgrammar", "ngram", "eager"),
    ("llguidance", "ngram", "lazy"),
]


def check_long(bench: Bench, late: int = LATE) -> None:
    """Steps behind few and behind many tokens."""
    bench.add("long", late + 20 * NUM_STEPS)
    costs = []
    for num_tokens in (EARLY, late):
        bench.write_until(num_tokens)
        costs.append(cost_of(bench, bench.engine.step, NUM_STEPS))
    early, now = costs
    assert early.num_bytecodes > 100
    assert early.num_read > 0
    now.check_flat(early)


def check_short(bench: Bench, num_earlier: Sequence[int] = NUM_EARLIER) -> None:
    """A request behind few and behind many others, and what the engine holds then."""
    number = 0

    def decode() -> None:
        nonlocal number
        number += 1
        bench.write_short(number)

    costs, sizes, num_threads = [], [], []
    for most in num_earlier:
        while number < most:
            decode()
        held = footprint(bench.engine)
        held.pop("BitmaskGuard._last[]", None)  # the array that was seen last: one of the ring's
        # What is known of threads grows until every size of steps that there is was tried often enough.
        num_sizes, num_choices, num_times = (
            held.pop(name, 0) for name in ("FillWorkers._sizes", "_Size._spent", "_Size._spent[]")
        )
        assert num_sizes <= 8
        assert num_choices <= (os.cpu_count() or 1) * num_sizes
        assert num_times <= 9 * num_choices
        sizes.append(held)
        num_threads.append(threading.active_count())
        costs.append(cost_of(bench, decode, 4))
    costs[1].check_flat(costs[0])
    assert sizes[1] == sizes[0]
    assert num_threads[1] <= num_threads[0]


def check_bytes(bench: Bench) -> None:
    """Earlier requests leave less behind than the id of each."""
    held = []
    tracemalloc.start()
    try:
        for number in range(1, 1001):
            bench.write_short(number)
            if number in (500, 1000):  # NumPy keeps small blocks for later, more of them at first
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 24_000, "48 bytes a request"


@pytest.mark.parametrize("name, algorithm, policy", SETUPS)
def test_a_step_does_the_same_after_5000_tokens(name: str, algorithm: str, policy: MaskPolicyChoice) -> None:
    check_long(Bench.of(name, algorithm, policy))


@pytest.mark.parametrize("algorithm, policy", [("none", "eager"), ("ngram", "lazy")])
def test_matchers_move_over_as_many_tokens_after_5000(algorithm: str, policy: MaskPolicyChoice) -> None:
    check_long(Bench.of("xgrammar", algorithm, policy, counting=True))


@pytest.mark.parametrize("name, algorithm, policy", SETUPS)
def test_a_request_does_the_same_after_500_others(name: str, algorithm: str, policy: MaskPolicyChoice) -> None:
    check_short(Bench.of(name, algorithm, policy))


def test_500_requests_leave_no_bytes_behind() -> None:
    check_bytes(Bench.of("xgrammar", "ngram", "eager"))


# The checks see what they are there for.


def decodes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    finish_reason = StopRules.finish_reason

    def planted(rules: StopRules, output: Sequence[int], vocabulary: Vocabulary) -> FinishReason | None:
        assert isinstance(output, list)
        assert all(token >= 0 for token in list[int].__iter__(output))
        return finish_reason(rules, output, vocabulary)

    monkeypatch.setattr(StopRules, "finish_reason", planted)


def copies_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = GrammarSession.advance

    def planted(session: GrammarSession) -> None:
        list.copy(session.output)  # not through `Counted`
        advance(session)

    monkeypatch.setattr(GrammarSession, "advance", planted)


def searches_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = RootProducer.propose

    def planted(producer: RootProducer, batch: DecodeBatch) -> DraftTree:
        assert all(9 not in view.tokens for view in batch.requests)  # in C, without a copy
        return propose(producer, batch)

    monkeypatch.setattr(RootProducer, "propose", planted)


def replays_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = GrammarSession.advance

    def planted(session: GrammarSession) -> None:
        advance(session)
        assert session.cursor is not None
        session.cursor.matcher.rollback(len(session.output))
        session.cursor.matcher.accept_prefix(list.copy(session.output))

    monkeypatch.setattr(GrammarSession, "advance", planted)


def remembers_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = Ledger.leave

    def planted(ledger: Ledger, request_id: str) -> None:
        vars(ledger).setdefault("left", set()).add(request_id)
        leave(ledger, request_id)

    monkeypatch.setattr(Ledger, "leave", planted)


def keeps_ids_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ids: list[str] = []
    leave = Ledger.leave

    def planted(ledger: Ledger, request_id: str) -> None:
        ids.append(request_id)
        leave(ledger, request_id)

    monkeypatch.setattr(Ledger, "leave", planted)
    return ids


def looks_at_all_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = keeps_ids_elsewhere(monkeypatch)
    join = Ledger.join

    def planted(ledger: Ledger, request_id: str, *rest: Any) -> Entry:
        assert all(known != request_id for known in ids)
        return join(ledger, request_id, *rest)

    monkeypatch.setattr(Ledger, "join", planted)


@pytest.mark.parametrize(
    "plant, name",
    [
        (decodes_everything, "num_bytecodes"),
        (copies_the_output, "num_bytes"),
        (searches_the_history, "num_read"),
        (replays_the_grammar, "num_moves"),
    ],
)
def test_a_step_that_walks_the_history_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=name):
        check_long(Bench.of("xgrammar", "none", "eager", counting=name == "num_moves"), late=2_000)


@pytest.mark.parametrize(
    "plant, what, check",
    [
        (remembers_ids, "left", lambda bench: check_short(bench, (10, 20))),
        (looks_at_all_ids, "num_bytecodes", lambda bench: check_short(bench, (10, 300))),
        (keeps_ids_elsewhere, "bytes", check_bytes),
    ],
)
def test_what_requests_leave_behind_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None],
    what: str,
    check: Callable[[Bench], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=what):
        check(Bench.of("xgrammar", "none", "eager"))
