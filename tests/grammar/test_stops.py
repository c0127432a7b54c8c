"""Stop rules: which token is the last, and what the text is then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import Vocabulary

TOKENS = (b"", b"a", b"b", b"ab", b"ba", b"\xe2\x82", b"\xac", b"aab")
VOCABULARY = Vocabulary(TOKENS, stop_ids=(0,), special_ids=frozenset({0}))


def run(tokens: list[int], rules: StopRules) -> GrammarSession:
    session = GrammarSession(VOCABULARY, stops=rules)
    session.keep(tokens)
    return session


@given(
    st.lists(st.integers(1, 7), max_size=30),
    st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_end_at_the_token_that_completes_one(tokens: list[int], strings: list[str]) -> None:
    session = run(tokens, StopRules(stop_strings=tuple(strings)))
    whole = [VOCABULARY.text(tokens[: i + 1]) for i in range(len(tokens))]
    ends = [i for i, text in enumerate(whole) if any(string.encode() in text for string in strings)]
    assert len(session.output) == (ends[0] + 1 if ends else len(tokens))
    assert session.finish == ("stop_string" if ends else None)
    if ends:
        text = whole[ends[0]]
        cut = min(text.find(s.encode()) for s in strings if s.encode() in text)
        assert session.text == text[:cut].decode(errors="replace")


def test_the_stop_token_is_kept_and_gives_no_text() -> None:
    session = run([1, 2, 0, 1], StopRules(frozenset({0})))
    assert (session.output, session.finish, session.text) == ([1, 2, 0], "stop", "ab")


def test_the_limit_counts_tokens_and_a_stop_token_at_the_limit_is_a_stop() -> None:
    assert run([1, 1, 1], StopRules(max_new_tokens=2)).finish == "length"
    assert run([1, 1, 1], StopRules(max_new_tokens=2)).output == [1, 1]
    assert run([1, 0], StopRules(frozenset({0}), max_new_tokens=2)).finish == "stop"


def test_a_character_cut_in_two_is_replaced() -> None:
    assert run([1, 5], StopRules()).text == "a\ufffd"
    assert run([5, 6], StopRules()).text == "€"


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_new_tokens = 0"):
        StopRules(max_new_tokens=0)
    with pytest.raises(ConfigError, match="empty string"):
        StopRules(stop_strings=("a", ""))
