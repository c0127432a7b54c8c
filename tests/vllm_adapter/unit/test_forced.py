"""Forced drafts behind those of vLLM's proposer, and where they are possible."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError, ModelError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar_vllm.forced import ForcedDrafts, forced_drafts_of
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


def test_with_reasoning_drafts_there_are_no_more_than_fit_and_they_follow_the_marker() -> None:
    forced = ForcedDrafts(VOCABULARY, 5)
    walks, _ = new_walks(ToyManager(MARKER), forced=forced)
    request = new_request("r", "cabcab")
    found = walks.validate_tokens(request, [A, A, MARKER])
    assert found[:3] == [A, A, MARKER]
    assert len(found) == 5
    assert request.structured_output_request is not None
    assert request.structured_output_request.grammar.run.last_token == MARKER
    full = [A, A, A, A, MARKER]
    assert walks.validate_tokens(new_request("full", "cab"), full) == full


def test_a_run_is_learnt_from_once() -> None:
    walks, _ = new_walks(forced=ForcedDrafts(VOCABULARY, 8))
    request = new_request("r", "ca(ba){2}")
    found = walks.validate_tokens(request, [C])
    assert walks.grammar_bitmask({"r": request}, ["r"], {"r": found}) is not None
    assert walks.accept_tokens(request, found[:2])
    assert request.structured_output_request is not None
    assert request.structured_output_request.grammar.run is None


OURS = "specgrammar_vllm.Proposer"


def config(method: str | None, model: str = "", **more: Any) -> Any:
    speculative = SimpleNamespace(method=method, model=model, num_speculative_tokens_per_batch_size=None)
    return SimpleNamespace(
        speculative_config=None if method is None else speculative,
        scheduler_config=SimpleNamespace(async_scheduling=more.get("asynchronous", False)),
        parallel_config=SimpleNamespace(pipeline_parallel_size=more.get("stages", 1)),
        use_v2_model_runner=more.get("v2", False),
        num_speculative_tokens=4,
    )


def read() -> Vocabulary:
    return VOCABULARY


def unreadable() -> Vocabulary:
    raise ModelError("it is not a fast tokenizer")


@pytest.mark.parametrize(
    ("vllm_config", "asked", "expected"),
    [
        (config("ngram"), None, True),
        (config("suffix"), None, True),
        (config("ngram"), False, False),
        (config("custom_class", OURS), None, True),
        (config("custom_class", "their.Proposer"), None, False),
        (config("custom_class", "their.Proposer"), True, True),
        (config("eagle"), None, False),
        (config(None), None, False),
        (config("ngram", asynchronous=True), None, False),
        (config("ngram", v2=True), None, False),
        (config("ngram", stages=2), None, False),
    ],
)
def test_where_they_are_added(vllm_config: Any, asked: bool | None, expected: bool) -> None:
    assert (forced_drafts_of(vllm_config, asked, read) is not None) is expected


@pytest.mark.parametrize(
    ("vllm_config", "message"),
    [
        (config(None), r"pass the method 'custom_class' with the model .* algorithm 'none'"),
        (config("eagle"), "the method 'eagle' may verify its drafts by their probabilities"),
        (config("ngram", asynchronous=True), "before this one's tokens are known"),
        (config("ngram", v2=True), "VLLM_USE_V2_MODEL_RUNNER=0"),
        (config("custom_class", OURS, stages=2), "pipeline parallelism"),
    ],
)
def test_asking_for_them_where_they_cannot_be_is_an_error(vllm_config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        forced_drafts_of(vllm_config, True, read)


def test_a_schedule_of_draft_lengths_is_not_exceeded() -> None:
    scheduled = config("ngram")
    scheduled.speculative_config.num_speculative_tokens_per_batch_size = [(1, 8, 2)]
    assert forced_drafts_of(scheduled, None, read) is None


def test_a_tokenizer_that_cannot_be_read_leaves_them_out_unless_they_were_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert forced_drafts_of(config("ngram"), None, unreadable) is None
    assert "no forced drafts: it is not a fast tokenizer" in caplog.text
    with pytest.raises(ModelError):
        forced_drafts_of(config("ngram"), True, unreadable)
