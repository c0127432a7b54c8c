"""Forced drafts behind those of vLLM's proposer, and where they are possible."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar_vllm.forced import ForcedDrafts, forces_drafts
from tests.vllm_adapter.toy_vllm import ToyManager, new_request, new_walks

A, B, C, AB, MARKER = 0, 1, 2, 3, 12
BACKENDS = ("xgrammar", "llguidance")


def text_of(tokens: list[int]) -> bytes:
    return b"".join(VOCABULARY.tokens[token] for token in tokens)


@pytest.mark.parametrize("name", BACKENDS)
@given(
    st.sampled_from(("abcabc[12]", "(a|b)cab", "a(bc){3}", "[abc]{2}abab")),
    st.lists(st.sampled_from((A, B, C, AB)), max_size=4),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_they_spell_what_has_to_follow_the_legal_drafts(
    name: str, regex: str, drafts: list[int], max_drafts: int, max_tokens: int
) -> None:
    plain, _ = new_walks()
    walks, _ = new_walks(forced=ForcedDrafts(VOCABULARY, max_drafts))
    request = new_request("r", regex, name)
    request.max_tokens = max_tokens
    drafts = drafts[:max_drafts]
    legal = plain.validate_tokens(new_request("r", regex, name), drafts)
    found = walks.validate_tokens(request, [*drafts, -1])
    forced = found[len(legal) :]
    assert found[: len(legal)] == legal
    assert not forced or len(found) <= min(max_drafts, max_tokens - 1)
    session = new_request("r", regex, name).structured_output_request.grammar.session  # type: ignore[union-attr]
    assert session.forced_text(legal).startswith(text_of(forced))
    assert session.validate(found) == len(found)
    if session.forced_text(legal) and len(legal) < min(max_drafts, max_tokens - 1):
        assert forced


def test_the_rows_behind_them_are_the_grammars_and_they_are_committed() -> None:
    walks, _ = new_walks(forced=ForcedDrafts(VOCABULARY, 8))
    plain, _ = new_walks()
    request, other = new_request("r", "(a|b)cab"), new_request("r", "(a|b)cab")
    found = walks.validate_tokens(request, [B])
    assert text_of(found) == b"bcab"
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": found})
    expected = plain.grammar_bitmask({"r": other}, ["r"], {"r": found})
    assert rows is not None
    assert expected is not None
    assert rows.tolist() == expected.tolist()
    assert walks.accept_tokens(request, [*found, STOP])
    assert request.structured_output_request is not None
    assert request.structured_output_request.grammar.is_terminated()


def test_they_are_spelt_as_the_target_spelt_them_before() -> None:
    forced = ForcedDrafts(VOCABULARY, 8)
    walks, _ = new_walks(forced=forced)
    first = new_request("first", "ca(ba){2}")
    found = walks.validate_tokens(first, [C])
    usual, behind = found[1], next(t for t in (A, AB) if t != found[1])
    assert walks.grammar_bitmask({"first": first}, ["first"], {"first": found}) is not None
    assert walks.accept_tokens(first, [C, behind])
    assert forced.spelling.num_respelled == 1
    again = walks.validate_tokens(new_request("again", "ca(ba){2}"), [C])
    assert again[1] == behind != usual


def test_none_before_reasoning_has_ended_and_all_behind_it() -> None:
    walks, _ = new_walks(ToyManager(MARKER), forced=ForcedDrafts(VOCABULARY, 8))
    request = new_request("r", "cab")
    assert walks.validate_tokens(request, [A]) == [A]
    found = walks.validate_tokens(request, [A, MARKER])
    assert found[:2] == [A, MARKER]
    assert text_of(found[2:]) == b"cab"


def test_a_request_that_is_over_or_free_gets_none() -> None:
    walks, _ = new_walks(forced=ForcedDrafts(VOCABULARY, 8))
    request = new_request("r", "cab")
    walks.grammar_bitmask({"r": request}, ["r"], {})
    assert walks.accept_tokens(request, [C, AB, STOP])
    assert walks.validate_tokens(request, []) == []
    request = new_request("bad", "cab")
    assert not walks.accept_tokens(request, [B])
    assert walks.validate_tokens(request, []) == []


def speculative(method: str, model: str = "") -> Any:
    return SimpleNamespace(method=method, model=model)


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        (speculative("ngram"), None, True),
        (speculative("ngram"), False, False),
        (speculative("custom_class", "specgrammar_vllm.Proposer"), None, True),
        (speculative("custom_class", "their.Proposer"), None, False),
        (speculative("custom_class", "their.Proposer"), True, True),
        (speculative("eagle"), None, False),
        (None, None, False),
    ],
)
def test_where_they_are_added(config: Any, asked: bool | None, expected: bool) -> None:
    assert forces_drafts(asked, config, async_scheduling=False) is expected


def test_asking_for_them_where_they_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"pass the method 'custom_class' with the model .* algorithm 'none'"):
        forces_drafts(True, None, async_scheduling=False)
    with pytest.raises(ConfigError, match="the method 'eagle' may verify its drafts by their probabilities"):
        forces_drafts(True, speculative("eagle"), async_scheduling=False)
    with pytest.raises(ConfigError, match="before this one's tokens are known"):
        forces_drafts(True, speculative("ngram"), async_scheduling=True)
    assert not forces_drafts(None, speculative("ngram"), async_scheduling=True)
