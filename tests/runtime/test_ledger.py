"""The ledger: who moves, by what, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.spec import Commit
from specgrammar.runtime.ledger import Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY
from tests.toys import legal_ids, matcher


def result(tokens: list[int], request_id: str = "a", has_bonus: bool = True) -> RequestResult:
    return RequestResult(request_id, tuple(tokens), 3, has_bonus)


def known(step_result: StepResult) -> Outcome[StepResult]:
    return Outcome(lambda: step_result)


def take(ledger: Ledger) -> list[Commit]:
    ledger.resolve()
    return ledger.take_commits()


def joined(session: GrammarSession, step: int = 0) -> Ledger:
    ledger = Ledger()
    ledger.join("a", [7, 8], session, step)
    return ledger


@given(st.lists(st.sampled_from(["resolve", "advance", "publish"]), max_size=12))
def test_invariant_6_advance_happens_once_whoever_calls_it(calls: list[str]) -> None:
    """The stream is (ab)(ab)...; whatever the order of calls, history and grammar end where it says."""
    session = GrammarSession(VOCABULARY, matcher("llguidance", GRAMMARS[0]))
    ledger = joined(session)
    step = 0
    for call in calls:
        if call == "publish":
            ledger.publish(known(StepResult(step, (result([0, 1] if step % 2 else [3]),))))
            step += 1
        elif call == "resolve":
            ledger.resolve()
        else:
            ledger.advance_pending()
    ledger.advance_pending()
    ledger.advance_pending()
    expected = [token for i in range(step) for token in ([0, 1] if i % 2 else [3])]
    assert session.output == expected
    assert ledger.entries["a"].tokens == [7, 8, *expected]
    replay = matcher("llguidance", GRAMMARS[0])
    assert replay.accept_prefix(expected) == len(expected)
    assert session.cursor is not None
    assert legal_ids(session.cursor.matcher) == legal_ids(replay)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=20), st.integers(0, 3))
def test_invariant_7_each_step_counts_once_and_only_for_its_own_request(
    results: list[tuple[int, int]], joined_at: int
) -> None:
    """Results in any order, twice, from before the request joined, or for one that has left."""
    session = GrammarSession(VOCABULARY)
    ledger = joined(session, joined_at)
    expected: list[int] = []
    last, num_stale = -1, 0
    for step, token in results:
        ledger.publish(known(StepResult(step, (result([token]), result([5], "gone")))))
        num_stale += 1
        if step >= joined_at and step > last:
            expected.append(token)
            last = step
        else:
            num_stale += 1
    commits = take(ledger)
    assert session.output == expected
    assert [commit.tokens for commit in commits] == [(token,) for token in expected]
    assert ledger.num_stale == num_stale


def test_nothing_behind_the_end_is_kept_and_an_ended_request_is_skipped() -> None:
    session = GrammarSession(VOCABULARY, matcher("xgrammar", GRAMMARS[0]))
    ledger = joined(session)
    ledger.publish(known(StepResult(0, (result([3, 2, STOP, 0, 1]),))))
    ledger.publish(known(StepResult(1, (result([0]),))))
    (commit,) = take(ledger)
    ledger.advance_pending()
    assert (commit.tokens, commit.num_accepted, commit.finished) == ((3, 2, STOP), 3, True)
    assert ledger.num_stale == 1
    assert (session.output, session.finish, session.error) == ([3, 2, STOP], "stop", None)


def test_a_path_that_ends_in_the_stop_token_needs_no_bonus_token() -> None:
    session = GrammarSession(VOCABULARY, matcher("xgrammar", GRAMMARS[0]))
    ledger = joined(session)
    ledger.publish(known(StepResult(0, (result([4, STOP], has_bonus=False),))))
    (commit,) = take(ledger)
    assert (commit.num_accepted, session.finish) == (2, "stop")


def test_invariant_9_no_token_at_all_is_an_error_and_not_an_endless_loop() -> None:
    session = GrammarSession(VOCABULARY)
    ledger = joined(session)
    ledger.publish(known(StepResult(0, (result([0], has_bonus=False),))))
    ledger.resolve()
    assert session.output == [0]
    assert session.finish == "error"
    assert "no token can follow output position 1" in str(session.error)


def test_the_limit_cuts_a_path_and_its_logprobs() -> None:
    session = GrammarSession(VOCABULARY, stops=StopRules(max_new_tokens=2))
    ledger = joined(session)
    ledger.publish(known(StepResult(0, (RequestResult("a", (0, 1, 2), 2, True, (-1.0, -2.0, -3.0)),))))
    (commit,) = take(ledger)
    assert (commit.tokens, commit.num_accepted) == ((0, 1), 2)
    assert ledger.entries["a"].logprobs == [-1.0, -2.0]


def test_results_that_are_queued_for_a_request_that_left_are_dropped() -> None:
    session = GrammarSession(VOCABULARY)
    ledger = joined(session)
    ledger.join("b", [7], GrammarSession(VOCABULARY), step=0)
    ledger.publish(known(StepResult(0, (result([0]),))))
    ledger.leave("a")
    again = GrammarSession(VOCABULARY)
    ledger.join("a", [7], again, step=1)
    assert take(ledger) == []
    assert (session.output, again.output, ledger.num_stale) == ([], [], 1)


def test_nobody_waits_for_a_step_whose_requests_have_all_left() -> None:
    ledger = joined(GrammarSession(VOCABULARY))

    def never() -> StepResult:
        raise AssertionError

    ledger.publish(Outcome(never))
    ledger.leave("a")
    assert ledger.is_resolved
    assert take(ledger) == []


def test_an_id_in_flight_is_not_taken_twice() -> None:
    ledger = joined(GrammarSession(VOCABULARY))
    with pytest.raises(ConfigError, match="'a' is in flight"):
        ledger.join("a", [1], GrammarSession(VOCABULARY), 0)
