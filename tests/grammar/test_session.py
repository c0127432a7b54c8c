"""`GrammarSession` on its own, as an engine that owns its loop uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.grammar.gate import Markers
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.toys import GRAMMARS, PAD, STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.toys import BACKEND_NAMES, backend, legal_ids, matcher, row_of

names = st.sampled_from(BACKEND_NAMES)
grammars = st.sampled_from(GRAMMARS)
ids = st.sampled_from([0, 1, 2, 3, 4, 12, STOP, PAD, -1, VOCABULARY.vocab_size])


def legal_prefix(name: str, spec: GrammarSpec, tokens: list[int]) -> int:
    """How many tokens a fresh matcher takes one by one, up to and with a stop token."""
    fresh = matcher(name, spec)
    for index, token in enumerate(tokens):
        if not 0 <= token < VOCABULARY.vocab_size or not fresh.accept(token):
            return index
        if token == STOP:
            return index + 1
    return len(tokens)


@given(st.lists(ids, max_size=8), names, grammars)
def test_validate_counts_the_legal_prefix_and_changes_nothing(
    drafts: list[int], name: str, spec: GrammarSpec
) -> None:
    session = GrammarSession(VOCABULARY, matcher(name, spec))
    assert session.validate(drafts) == legal_prefix(name, spec, drafts) == session.validate(drafts)
    assert session.cursor is not None
    assert legal_ids(session.cursor.matcher) == legal_ids(matcher(name, spec))
    assert (session.output, session.finish) == ([], None)


@given(st.lists(ids, max_size=8))
def test_validate_without_a_grammar_refuses_only_what_is_no_token(drafts: list[int]) -> None:
    good = [0 <= token < VOCABULARY.vocab_size for token in drafts]
    until_stop = drafts.index(STOP) + 1 if STOP in drafts else len(drafts)
    expected = min(good.index(False) if False in good else len(drafts), until_stop)
    assert GrammarSession(VOCABULARY).validate(drafts) == expected


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 6), names, grammars, st.integers(1, 12))
def test_invariant_6_history_and_grammar_move_by_the_same_tokens(
    choices: list[int], block: int, name: str, spec: GrammarSpec, limit: int
) -> None:
    """Commit legal tokens in blocks, with rubbish behind the stop token: the end and the state are exact."""
    model = matcher(name, spec)
    tokens: list[int] = []
    for choice in choices:
        legal = legal_ids(model)
        token = legal[choice % len(legal)]
        model.accept(token)
        tokens.append(token)
        if token == STOP:
            break
    stops = StopRules(frozenset({STOP}), max_new_tokens=limit)
    session = GrammarSession(VOCABULARY, matcher(name, spec), stops=stops)
    rubbish = [PAD, 0, STOP] if STOP in tokens else []
    stream = tokens + rubbish
    for begin in range(0, len(stream), block):
        session.commit(stream[begin : begin + block])
    assert session.error is None
    assert session.output == tokens[:limit]
    ends = "stop" if STOP in tokens[:limit] else "length" if len(tokens) >= limit else None
    assert session.finish == ends
    replay = matcher(name, spec)
    assert replay.accept_prefix(tokens[:limit]) == len(tokens[:limit])
    assert session.cursor is not None
    assert session.cursor.matcher.finished == replay.finished
    if not replay.finished:
        assert legal_ids(session.cursor.matcher) == legal_ids(replay)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_invariant_4_what_went_past_the_mask_fails_the_request(name: str) -> None:
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]))
    session.commit([0, 1, 12])
    assert session.finish == "error"
    assert "token id 12 at output position 2" in str(session.error)
    again = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]))
    again.commit([STOP])
    assert again.finish == "error", "an end that the grammar does not share is no end"


@pytest.mark.parametrize("token", [-1, VOCABULARY.vocab_size, 2**40])
@pytest.mark.parametrize("name", [*BACKEND_NAMES, None])
def test_invariant_12_ids_outside_the_vocabulary_never_reach_a_backend(token: int, name: str | None) -> None:
    session = GrammarSession(VOCABULARY, None if name is None else matcher(name, GRAMMARS[0]))
    assert session.validate([0, token]) == 1
    session.commit([0, token, 1])
    assert (session.output, session.finish) == ([0], "error")
    assert f"token id {token} at output position 1" in str(session.error)


@pytest.mark.parametrize(
    ("marker", "words"),
    [([VOCABULARY.vocab_size], "outside the vocabulary"), ([0, STOP], "a stop token"), ([5], "a stop token")],
)
def test_a_gate_that_can_never_open_is_refused(marker: list[int], words: str) -> None:
    stops = StopRules(frozenset({5}))
    with pytest.raises(ConfigError, match=f"would never begin.*{words}"):
        GrammarSession(
            VOCABULARY, matcher("xgrammar", GRAMMARS[0]), gate=Markers(after=(tuple(marker),)), stops=stops
        )


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_settled_steps_are_forgotten(name: str) -> None:
    """What is kept for undoing does not grow with the output."""
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=Markers(after=((2,),)))
    assert session.cursor is not None
    session.commit([0, 2])
    for _ in range(50):
        session.commit([0, 1])
    assert not session.cursor.num_steps


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_a_session_fills_a_buffer_of_its_engine(name: str) -> None:
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]))
    bitmask = np.zeros((5, VOCABULARY.num_words), np.int32)
    status = session.fill(HostTree.from_chains([[9, 0, 1, 12]]), bitmask)
    assert status.tolist() == [NodeStatus.LIVE] * 3 + [NodeStatus.REJECTED]
    state = matcher(name, GRAMMARS[0])
    for row, token in zip(bitmask[:3], (0, 1, 2), strict=True):
        assert row.tolist() == row_of(state)
        assert state.accept(token)
    assert bitmask[3:].tolist() == [[-1], [0]], "all ones where the node is dead; nothing behind the tree"


def test_what_is_no_matcher_is_refused_at_once() -> None:
    wrong: Any = backend("xgrammar").compile(GRAMMARS[0])
    with pytest.raises(ConfigError, match=r"not a XGrammarCompiled; pass backend\.matcher\(compiled\)"):
        GrammarSession(VOCABULARY, wrong)


def test_the_first_failure_stays_and_an_abort_is_an_end() -> None:
    session = GrammarSession(VOCABULARY)
    session.abort()
    session.abort()
    assert session.finish == "abort"
    assert session.keep([0]) == 0
    assert session.validate([0]) == 0
