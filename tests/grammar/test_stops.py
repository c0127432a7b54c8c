"""Stop rules: which token is the last, and what the text is then."""

from __future__ import annotations

from typing import Any

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


def test_a_stop_token_that_is_text_gives_no_text_either() -> None:
    session = run([1, 2, 1, 3], StopRules(frozenset({2})))
    assert (session.output, session.finish, session.text) == ([1, 2], "stop", "a")
    assert run([1, 1], StopRules(frozenset({2}))).text == "aa"
    assert run([], StopRules(frozenset({2}))).text == ""


@given(
    st.lists(st.integers(0, 7), max_size=30),
    st.frozensets(st.integers(0, 7)),
    st.lists(st.text("ab€", min_size=1, max_size=3), max_size=2),
    st.integers(1, 10),
)
def test_the_text_is_that_of_the_tokens_before_the_stop_token(
    tokens: list[int], ids: frozenset[int], strings: list[str], limit: int
) -> None:
    session = run(tokens, StopRules(ids, tuple(strings), limit))
    kept = session.output[:-1] if session.finish == "stop" else session.output
    text = VOCABULARY.text(kept)
    cut = min((text.find(s.encode()) for s in strings if s.encode() in text), default=len(text))
    assert session.text == text[:cut].decode(errors="replace")


def test_any_collection_is_taken() -> None:
    rules: Any = StopRules([3, 3], ["a"])  # type: ignore[arg-type]  # what callers without a type checker do
    assert (rules.stop_ids, rules.stop_strings) == (frozenset({3}), ("a",))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"max_new_tokens": 1.0}, "max_new_tokens = 1.0"),
        ({"max_new_tokens": True}, "max_new_tokens = True"),
        ({"max_new_tokens": 2**70}, "max_new_tokens = 1180591620717411303424"),
        ({"stop_strings": ("a", "")}, r"stop_strings\[1\] = ''; expected text that is not empty"),
        ({"stop_strings": "abc"}, "stop_strings = 'abc'; expected a sequence of strings"),
        ({"stop_strings": (b"a",)}, r"stop_strings\[0\] = b'a'"),
        ({"stop_strings": ("\udcff",)}, r"stop_strings\[0\] = '\\udcff'; expected UTF-8"),
        ({"stop_ids": {-1}}, r"stop_ids\[0\] = -1"),
        ({"stop_ids": ("a",)}, r"stop_ids\[0\] = 'a'"),
        ({"stop_ids": 3}, "stop_ids = 3; expected a sequence"),
    ],
)
def test_impossible_rules_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match="^" + named):
        StopRules(**values)
