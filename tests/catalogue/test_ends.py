"""How requests end: the stop token and the grammar's end, in the middle of drafts and of accepted blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specgrammar.errors import RequestError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec
from specgrammar.protocols.spec import Commit
from specgrammar.runtime.ledger import Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.testing.reference import ReferenceMatcher
from specgrammar.testing.toys import SPECIAL, STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.catalogue.naive import FlaggedGrammar, chain_rows, everything, greedy_path, masked, row_behind
from tests.catalogue.ours import (
    AB,
    ENDED,
    LIVE,
    PADDING,
    PAIRS,
    REJECTED,
    A,
    B,
    every_backend,
    gate_behind,
    legal_behind,
    matcher,
    matcher_of,
    replayed,
    rows_for,
    session_of,
    state_of,
    step,
    wanting,
)
from tests.toys import legal_ids


def committed(session: GrammarSession, *blocks: Sequence[int]) -> tuple[Ledger, list[Commit]]:
    """A ledger behind one step per block, and its commits."""
    ledger = Ledger()
    ledger.join("a", [A], session, 0)
    for number, block in enumerate(blocks):
        result = StepResult(number, (RequestResult("a", tuple(block), len(block) - 1, True),))
        ledger.publish(Outcome(lambda result=result: result))  # type: ignore[misc]  # bound now
    ledger.advance_pending()
    return ledger, ledger.take_commits()


@every_backend
def test_failure_01_a_terminated_flag_is_stale_after_tokens_behind_the_stop_token(name: str) -> None:
    naive = FlaggedGrammar(matcher(PAIRS, name))
    assert not naive.accept_tokens([AB, STOP, A])
    assert naive.matcher.finished
    assert not naive.terminated, "the block was refused before the flag was set"
    with pytest.raises(RequestError):  # so the engine asks for the mask of a matcher that has ended
        row_behind(naive.matcher)

    session = session_of(PAIRS, name=name)
    assert session.commit([AB, STOP, A]) == 2
    assert (session.output, session.finish, session.error) == ([AB, STOP], "stop", None)
    assert session.fill(HostTree.roots([STOP]), rows_for(1)).tolist() == [PADDING]


class ReasonerGrammar(ReferenceMatcher):
    """Wraps a grammar for reasoning models, and answers one question with the default of its base class."""

    @property
    def finished(self) -> bool:
        return False


def test_failure_02_a_wrapper_forgets_that_its_grammar_has_ended() -> None:
    naive = FlaggedGrammar(matcher_of(ReasonerGrammar, PAIRS))
    assert naive.accept_tokens([AB, STOP])
    assert not naive.terminated
    with pytest.raises(RequestError):
        row_behind(naive.matcher)

    for gate, before in ((None, []), (gate_behind(SPECIAL), [A, SPECIAL])):
        session = GrammarSession(VOCABULARY, matcher_of(ReasonerGrammar, PAIRS), gate=gate)
        session.commit([*before, AB, STOP])
        assert (session.finish, session.error) == ("stop", None), (
            "the stop rules know it, whatever a matcher says"
        )
        assert session.fill(HostTree.from_chains([[STOP, A]]), rows_for(2)).tolist() == [PADDING] * 2


@every_backend
@pytest.mark.parametrize("position", range(5))
def test_failure_03_the_stop_token_at_every_position_of_a_draft(name: str, position: int) -> None:
    drafts = [*[AB] * position, STOP, A, B]
    naive = replayed(PAIRS, [AB], name)
    with pytest.raises(RequestError):
        chain_rows(naive, drafts)
    assert naive.finished, "and the walk has left it behind the end"

    session = session_of(PAIRS, [AB], name)
    status = session.fill(HostTree.from_chains([[AB, *drafts]]), rows_for(position + 4))
    assert status.tolist() == [LIVE] * (position + 1) + [ENDED] + [REJECTED] * 2
    assert session.validate(drafts) == position + 1
    assert session.finish is None
    assert legal_ids(state_of(session)) == legal_behind(PAIRS, [AB], name)


@every_backend
def test_failure_04_the_stop_token_at_every_accept_length_of_a_batch(name: str) -> None:
    width = 5
    drafts = [[*[AB] * n, STOP, *[AB] * (width - n - 1)] for n in range(width)]
    wanted = [[*chain, AB] for chain in drafts]  # the model goes on behind the stop token, as models do
    for length, (chain, tokens) in enumerate(zip(drafts, wanted, strict=True)):
        before = chain_rows(replayed(PAIRS, [AB], name), chain[:length])
        rows = [*before, *[everything()] * (width - length)]  # an ended matcher is not asked
        assert greedy_path(masked(wanting(*tokens), rows), chain) == tokens, (
            "and the model talks on behind the end"
        )

    sessions = [session_of(PAIRS, [AB], name) for _ in drafts]
    tree = HostTree.from_chains([[AB, *chain] for chain in drafts])
    outputs = step(sessions, tree, wanting(*[token for tokens in wanted for token in tokens]))
    assert outputs == [[AB, *[AB] * n, STOP] for n in range(width)]
    assert [(session.finish, session.error) for session in sessions] == [("stop", None)] * width


class StopIsNoStep:
    """A matcher whose stop token sets a flag but leaves no entry in the history that `rollback` counts by."""

    def __init__(self, inner: GrammarMatcher) -> None:
        self.inner, self.finished = inner, False

    def accept(self, token: int) -> bool:
        if token == STOP:
            self.finished = True
            return True
        return self.inner.accept(token)

    def rollback(self, num_tokens: int) -> None:
        self.finished = False
        self.inner.rollback(num_tokens)


@every_backend
def test_failure_05_rollback_is_off_by_one_at_the_end(name: str) -> None:
    tokens = [AB, A, B, STOP]
    naive = StopIsNoStep(matcher(PAIRS, name))
    assert [naive.accept(token) for token in tokens] == [True] * 4
    naive.rollback(2)  # the stop token and the b before it
    assert legal_ids(naive.inner) == legal_behind(PAIRS, [AB], name), "one token too far"
    assert legal_ids(naive.inner) != legal_behind(PAIRS, [AB, A], name)

    for num_back in range(1, len(tokens) + 1):
        state = replayed(PAIRS, tokens, name)
        state.rollback(num_back)
        assert not state.finished
        assert legal_ids(state) == legal_behind(PAIRS, tokens[: len(tokens) - num_back], name)


@every_backend
def test_failure_06_tokens_behind_the_end_are_kept(name: str) -> None:
    block = [AB, STOP, A, B]
    naive = list(block)  # the accepted block is appended as a whole, and then the end is looked for
    assert STOP in naive
    assert VOCABULARY.text(naive) == b"abab"

    session = session_of(PAIRS, name=name)
    ledger, (commit,) = committed(session, block)
    assert commit.tokens == (AB, STOP)
    assert ledger.entries["a"].tokens == [A, AB, STOP]
    assert (session.output, session.text) == ([AB, STOP], "ab")


@every_backend
def test_failure_07_a_finish_inside_an_accepted_block_is_missed(name: str) -> None:
    block = [AB, STOP, AB]
    assert block[-1] != STOP, "an engine that looks at the last token goes on"

    session = session_of(PAIRS, name=name)
    ledger, commits = committed(session, block, [AB, AB])
    assert [(commit.tokens, commit.finished) for commit in commits] == [((AB, STOP), True)]
    assert ledger.num_stale == 1, "what the next step found is nothing to a request that is over"
    assert session.finish == "stop"


TWO_PAIRS = GrammarSpec.regex("(ab){2}")


@every_backend
def test_failure_08_history_and_grammar_are_advanced_by_different_prefixes(name: str) -> None:
    block = [A, B, AB]
    history, naive = list(block), matcher(TWO_PAIRS, name)
    naive.accept(block[-1])  # the bonus token alone, as in decoding without drafts
    assert legal_behind(TWO_PAIRS, history, name) == [STOP]
    assert legal_ids(naive) == [A, AB], "the grammar wants what the history has already"

    session = session_of(TWO_PAIRS, name=name)
    ledger, (commit,) = committed(session, block)
    assert list(commit.tokens) == session.output == ledger.entries["a"].tokens[1:] == block
    assert legal_ids(state_of(session)) == [STOP]
