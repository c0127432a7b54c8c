"""Checks of `Ledger`: by what histories and grammars move, how often, and what of a step is kept."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from specgrammar.errors import ConfigError, InvalidTokenError
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.spec import Commit
from specgrammar.runtime.ledger import Entry, Ledger, RequestResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.checks.base import Checks, Draw, Story, expect, expect_raise, explore, same
from specgrammar.testing.checks.ledger_play import play_any_order
from specgrammar.testing.checks.plain_ledger import (
    BRACE,
    PROMPT,
    A,
    B,
    C,
    StepFailedError,
    fail,
    grammar_follows,
    history_is,
    known,
    late,
    result_of,
    session_for,
)
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY, text_of, texts_of

MakeLedger = Callable[[], Ledger]
"""What ledger checks take: makes an empty one."""

LEDGER_CHECKS = Checks("ledger")


def alone(make: MakeLedger, session: GrammarSession, step: int = 0) -> tuple[Ledger, Entry]:
    """A ledger with the one request `a`."""
    ledger = make()
    return ledger, ledger.join("a", PROMPT, session, step)


@LEDGER_CHECKS.add(invariant=6)
def check_a_result_moves_the_history(make: MakeLedger) -> None:
    """`resolve` appends what a step accepted, and its bonus token, to the history, and makes a commit of it."""
    ledger, entry = alone(make, session_for())
    ledger.publish(known(0, result_of("a", [A, B, C], num_draft_tokens=4)))
    same("is_resolved with a result queued", ledger.is_resolved, False)
    history_is(entry, [], "before `resolve`")
    ledger.resolve()
    history_is(entry, [A, B, C], "after `resolve`")
    same("is_resolved after `resolve`", ledger.is_resolved, True)
    same("take_commits()", ledger.take_commits(), [Commit("a", (A, B, C), 4, 2, False)])
    same("num_verify_steps", entry.num_verify_steps, 1)


@LEDGER_CHECKS.add(invariant=6)
def check_the_grammar_follows_the_history(make: MakeLedger) -> None:
    """After `advance_pending` the grammar stands behind the history, whoever called what before, how often."""

    def play(draw: Draw, story: Story) -> None:
        ledger, entry = alone(make, session_for(GRAMMARS[0]))
        stream, published = [A, B] * 8, 0  # (ab)(ab)...
        for step in range(draw(st.integers(1, 5))):
            call = draw(st.sampled_from(["publish", "resolve", "advance_pending"]))
            if call == "publish":
                num_tokens = draw(st.integers(1, 3))
                block, published = stream[published : published + num_tokens], published + num_tokens
                story.tell(f"publish {texts_of(block)} of step {step}")
                ledger.publish(known(step, result_of("a", block)))
            else:
                story.tell(call)
                getattr(ledger, call)()
        for call in ("advance_pending", "a second advance_pending"):
            story.tell(call)
            ledger.advance_pending()
            history_is(entry, stream[:published], f"after {call}")
            same("finish", entry.session.finish, None)
            grammar_follows(entry, f"after {call}")

    explore(play, max_examples=60)


@LEDGER_CHECKS.add(invariant=6)
def check_moves_ahead_are_taken_back(make: MakeLedger) -> None:
    """`advance_pending` undoes what the grammar moved ahead for a result that never came, or came shorter."""
    for block in ([], [A], [A, B]):
        ledger, entry = alone(make, session_for(GRAMMARS[0]))
        same("tokens that the grammar follows", entry.session.follow([A, B]), 2)
        if block:
            ledger.publish(known(0, result_of("a", block)))
        ledger.advance_pending()
        when = f"where the grammar moved ahead over {texts_of([A, B])} and {texts_of(block)} was committed"
        history_is(entry, block, when)
        grammar_follows(entry, when)


@LEDGER_CHECKS.add(invariant=6)
def check_nothing_behind_the_end_is_kept(make: MakeLedger) -> None:
    """Of history, commit and logprobs nothing is kept behind the token that ends a request."""
    ends: list[tuple[str, StopRules, int]] = [("stop token", StopRules(frozenset({STOP})), STOP)]
    ends.append(("stop string 'c'", StopRules(stop_strings=("c",)), C))
    for width in range(1, 5):
        for position in range(width):
            limit = ("limit on tokens", StopRules(max_new_tokens=position + 1), B)
            for what, stops, token in (*ends, limit):
                for has_bonus in (True, False):
                    ledger, entry = alone(make, session_for(stops=stops))
                    block = [A] * position + [token] + [B] * (width - position - 1)
                    logprobs = tuple(-1.0 - i for i in range(width))
                    found = RequestResult("a", tuple(block), width, has_bonus, logprobs)
                    ledger.publish(known(0, found))
                    ledger.publish(known(1, result_of("a", [A])))
                    ledger.resolve()
                    when = (
                        f"where {texts_of(block)} {'with' if has_bonus else 'without'} a bonus token meets the"
                    )
                    when = f"{when} {what} at {position}"
                    kept = block[: position + 1]
                    history_is(entry, kept, when)
                    same(f"{when}, the logprobs", entry.logprobs, [*logprobs[: position + 1]])
                    expect(entry.session.error is None, f"{when}, the request failed: {entry.session.error}")
                    commit = Commit("a", tuple(kept), width, min(position + 1, width - has_bonus), True)
                    same(f"{when}, the commits", ledger.take_commits(), [commit])
                    same(f"{when}, num_stale of a result behind the end", ledger.num_stale, 1)


@LEDGER_CHECKS.add(invariant=6)
def check_commits_are_handed_out_once(make: MakeLedger) -> None:
    """`take_commits` returns each commit once, in the order in which the results were published."""
    ledger = make()
    for name in "ab":
        ledger.join(name, PROMPT, session_for(), 0)
    for step, token in enumerate((A, B, C)):
        ledger.publish(known(step, result_of("b", [token]), result_of("a", [token])))
        if step != 1:
            ledger.resolve()
    found = [(commit.request_id, commit.tokens) for commit in ledger.take_commits()]
    same("take_commits() behind three steps", found, [(name, (token,)) for token in (A, B, C) for name in "ba"])
    same("take_commits() of nothing new", ledger.take_commits(), [])


@LEDGER_CHECKS.add(invariant=7)
def check_each_step_counts_once(make: MakeLedger) -> None:
    """A result of a step before its request joined, or of one that was applied, is dropped and counted."""

    def play(draw: Draw, story: Story) -> None:
        joined = draw(st.integers(0, 2))
        story.tell(f"join at step {joined}")
        ledger, entry = alone(make, session_for(), joined)
        expected, last, num_stale = list[int](), -1, 0
        for step in draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)):
            token = draw(st.sampled_from([A, B, C]))
            story.tell(f"publish {text_of(token)} of step {step}")
            ledger.publish(known(step, result_of("a", [token])))
            if step >= joined and step > last:
                expected, last = [*expected, token], step
            else:
                num_stale += 1
        ledger.resolve()
        history_is(entry, expected, "after `resolve`")
        same("tokens of commits", [commit.tokens for commit in ledger.take_commits()], [(t,) for t in expected])
        same("num_stale", ledger.num_stale, num_stale)

    explore(play, max_examples=60)


@LEDGER_CHECKS.add(invariant=7)
def check_results_of_who_left_are_dropped(make: MakeLedger) -> None:
    """What is queued for a request that left goes to nobody, not to a later request of the same id either."""
    ledger, entry = alone(make, session_for())
    ledger.join("b", PROMPT, session_for(), 0)
    ledger.publish(known(0, result_of("a", [A]), result_of("b", [B]), result_of("never joined", [C])))
    ledger.leave("a")
    later = ledger.join("a", PROMPT, session_for(), 1)
    ledger.resolve()
    history_is(entry, [], "of the request that left")
    history_is(later, [], "of the later request of its id")
    history_is(ledger.entries["b"], [B], "of the request that stayed")
    same("num_stale", ledger.num_stale, 2)
    ledger.leave("a")
    ledger.publish(known(1, result_of("a", [A]), result_of("b", [B])))
    ledger.rejoin("a", later, 2)
    ledger.publish(known(2, result_of("a", [C])))
    ledger.resolve()
    history_is(later, [C], "of a request that had a break while step 1 was queued, and went on at step 2")


@LEDGER_CHECKS.add(invariant=7)
def check_results_of_the_ended_are_dropped(make: MakeLedger) -> None:
    """What is queued for a request that ended meanwhile is dropped and counted, however it ended."""
    for what in ("aborted", "failed"):
        ledger, entry = alone(make, session_for())
        ledger.publish(known(0, result_of("a", [A, B])))
        entry.session.abort() if what == "aborted" else entry.session.fail(InvalidTokenError("elsewhere"))
        ledger.resolve()
        history_is(entry, [], f"of a request that {what} while a result was queued")
        same(f"num_stale behind a result of a request that {what}", ledger.num_stale, 1)
        same(f"commits of a request that {what}", ledger.take_commits(), [])


@LEDGER_CHECKS.add(invariant=8)
def check_late_results_are_waited_for_in_resolve(make: MakeLedger) -> None:
    """`publish` never waits for a result; `resolve` waits for every one that is queued."""
    device = DelayedDevice()
    ledger, entry = alone(make, session_for())
    ledger.publish(late(device, 0, result_of("a", [A])))
    ledger.publish(known(1, result_of("a", [B])))
    same("pieces of work that `publish` waited for", device.num_done, 0)
    same("is_resolved with results queued", ledger.is_resolved, False)
    ledger.resolve()
    history_is(entry, [A, B], "after `resolve` of a result that was on its way, and of one behind it")
    ledger.publish(late(device, 2, result_of("a", [C])))
    ledger.advance_pending()
    history_is(entry, [A, B, C], "after `advance_pending` with a result on its way")


@LEDGER_CHECKS.add(invariant=8)
def check_nobody_waits_when_all_have_left(make: MakeLedger) -> None:
    """With the last request what is queued goes, too."""
    device = DelayedDevice()
    ledger, _ = alone(make, session_for())
    ledger.publish(late(device, 0, result_of("a", [A])))
    ledger.leave("a")
    ledger.leave("never joined")
    same("is_resolved after the last request left", ledger.is_resolved, True)
    ledger.resolve()
    same("pieces of work that were waited for, for nobody", device.num_done, 0)
    same("take_commits()", ledger.take_commits(), [])


@LEDGER_CHECKS.add(invariant=9)
def check_a_failed_step_is_told_once(make: MakeLedger) -> None:
    """`resolve` raises what a step raised; what is before it and behind it is kept."""
    ledger, entry = alone(make, session_for())
    ledger.publish(known(0, result_of("a", [A])))
    ledger.publish(Outcome(fail))
    ledger.publish(known(2, result_of("a", [C])))
    with expect_raise(StepFailedError, "`resolve` of a step that raised"):
        ledger.resolve()
    history_is(entry, [A], "where the step behind it raised")
    same("is_resolved with a result queued behind one that raised", ledger.is_resolved, False)
    ledger.resolve()
    history_is(entry, [A, C], "after a second `resolve`, behind a step that raised")
    found = [commit.tokens for commit in ledger.take_commits()]
    same("tokens of the commits around a step that raised", found, [(A,), (C,)])


@LEDGER_CHECKS.add(invariant=9)
def check_a_failure_stays_with_its_request(make: MakeLedger) -> None:
    """An id outside the vocabulary, one that the grammar refuses, or none at all ends that request alone."""
    cases: list[tuple[str, list[int], bool, list[int]]] = [
        ("an id outside the vocabulary", [A, VOCABULARY.vocab_size], True, [A]),
        ("a padding id", [A, -1, B], True, [A]),
        ("a token that the grammar refuses", [A, BRACE], True, [A, BRACE]),
        ("no bonus token, where nothing ended", [A], False, [A]),
        ("no token at all", [], False, []),
    ]
    for what, block, has_bonus, kept in cases:
        ledger = make()
        entries = {name: ledger.join(name, PROMPT, session_for(GRAMMARS[0]), 0) for name in "abc"}
        results = [result_of(name, [A, B]) for name in "abc"]
        results[1] = RequestResult("b", tuple(block), 3, has_bonus)
        ledger.publish(known(0, *results))
        ledger.advance_pending()
        failed = entries["b"]
        same(f"finish of a request whose result has {what}", failed.session.finish, "error")
        if what.startswith("no "):
            message = str(failed.session.error)
            expect("no token can follow" in message, f"the reason for {what} is {message!r}; it says not what")
        else:
            is_named = isinstance(failed.session.error, InvalidTokenError)
            expect(is_named, f"the reason for {what} is {failed.session.error!r}; expected InvalidTokenError")
        history_is(failed, kept, f"of a request whose result has {what}")
        for name in "ac":
            history_is(entries[name], [A, B], f"beside a request whose result has {what}")
            same(f"finish beside a request whose result has {what}", entries[name].session.finish, None)
            grammar_follows(entries[name], f"beside a request whose result has {what}")


@LEDGER_CHECKS.add(invariant=10)
def check_ids_in_flight_are_unique(make: MakeLedger) -> None:
    """`join` and `rejoin` of an id that is in flight raise ConfigError and change nothing."""
    ledger, entry = alone(make, session_for())
    with expect_raise(ConfigError, "join of an id that is in flight"):
        ledger.join("a", [A], session_for(), 0)
    with expect_raise(ConfigError, "rejoin of an id that is in flight"):
        ledger.rejoin("a", Entry(session_for(), [A], 1, 0), 0)
    expect(ledger.entries.get("a") is entry, "a refused `join` took the place of the request in flight")


@LEDGER_CHECKS.add(invariant=6)
def check_any_order_of_calls(make: MakeLedger) -> None:
    """Whatever is called in whatever order, the books agree with plain ones."""
    explore(lambda draw, story: play_any_order(make(), draw, story), max_examples=150)
