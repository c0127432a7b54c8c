"""The three walks against a walk token by token, as vLLM writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, MatcherError, SpecGrammarError
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar_vllm.walks import Walks
from tests.toys import backend
from tests.vllm_adapter.toy_vllm import (
    ToyBounds,
    ToyManager,
    ToyRequest,
    ToyStructuredRequest,
    new_grammar,
    new_request,
    new_walks,
)

REGEXES = ("(ab)+c", "a{2,5}(b|c)?", "[abc12]*", "(a|ab|abc)(1|2)+")
ONES = [-1]
BACKENDS = ("xgrammar", "llguidance")
A, B, C, MARKER = 0, 1, 2, 12


def fresh(name: str, regex: str, committed: Sequence[int]) -> GrammarMatcher:
    chosen = backend(name)
    matcher = chosen.matcher(chosen.compile(GrammarSpec.regex(regex)))
    assert matcher.accept_prefix(committed) == len(committed)
    return matcher


def row_of(matcher: GrammarMatcher) -> list[int]:
    bitmask = np.zeros((1, VOCABULARY.num_words), dtype=np.int32)
    matcher.fill_bitmask(bitmask, 0)
    return [int(word) for word in bitmask[0]]


def rows_token_by_token(matcher: GrammarMatcher, tokens: Sequence[int], bounds: ToyBounds) -> list[list[int]]:
    """vLLM's `grammar_bitmask` for one request."""
    rows: list[list[int]] = []
    padded, failed = False, -1
    for i, token in enumerate([*tokens, -1]):
        if failed >= 0:
            rows.append(rows[failed])
            continue
        restricts = not padded and i >= bounds.constraint_start and not matcher.finished
        rows.append(row_of(matcher) if restricts else ONES)
        padded = padded or token < 0
        if not padded and i >= bounds.grammar_start and not matcher.accept(token):
            failed = i
    return rows


tokens = st.lists(st.sampled_from((A, B, C, 3, 4, 12, 13, STOP, 17)), max_size=6)
requests = st.tuples(st.sampled_from(BACKENDS), st.sampled_from(REGEXES), tokens, tokens, st.integers(0, 2))


@given(st.lists(requests, min_size=1, max_size=4), st.integers(0, 1), st.booleans())
def test_rows_and_moves_are_those_of_a_walk_token_by_token(
    made: list[tuple[str, str, list[int], list[int], int]], num_threads: int, ahead: bool
) -> None:
    walks, _ = new_walks(num_threads=num_threads)
    batch: dict[str, Any] = {}
    scheduled: dict[str, list[int]] = {}
    expected: list[list[int]] = []
    for number, (name, regex, wished, drafts, num_padding) in enumerate(made):
        request_id = str(number)
        request = batch[request_id] = new_request(request_id, regex, name)
        plain = fresh(name, regex, ())
        committed = wished[: plain.accept_prefix(wished)]
        assert walks.accept_tokens(request, list(committed))
        validated = walks.validate_tokens(request, [*drafts, -1])
        assert validated == drafts[: fresh(name, regex, committed).accept_prefix(drafts)]
        given_drafts = [*(validated if number % 2 else drafts), *[-1] * num_padding]
        scheduled[request_id] = given_drafts
        expected += rows_token_by_token(fresh(name, regex, committed), given_drafts, ToyBounds(0, 0))
    if ahead:
        walks.begin(batch, list(batch), scheduled)
    rows = walks.grammar_bitmask(batch, list(batch), scheduled)
    assert rows is not None
    assert rows.tolist() == expected
    behind: list[list[int]] = []
    for request_id, (name, regex, wished, _, _) in zip(batch, made, strict=True):
        plain = fresh(name, regex, ())
        plain.accept_prefix(wished)
        new = scheduled[request_id][: plain.accept_prefix([t for t in scheduled[request_id] if t >= 0][:2])]
        assert walks.accept_tokens(batch[request_id], list(new))
        behind.append(ONES if plain.finished else row_of(plain))
        assert batch[request_id].structured_output_request.grammar.is_terminated() == plain.finished
    rows = walks.grammar_bitmask(batch, list(batch), {})
    assert rows is not None
    assert rows.tolist() == behind
    walks.close()


@given(tokens, st.integers(0, 2), st.booleans())
def test_nothing_is_restricted_before_reasoning_ends(
    drafts: list[int], num_padding: int, implicit: bool
) -> None:
    manager = ToyManager(MARKER, implicit=implicit)
    walks, _ = new_walks(manager, num_threads=0)
    request = new_request("r", "1?(ab)+c")
    validated = walks.validate_tokens(request, drafts)
    bounds = manager._get_constraint_bounds(request, drafts)
    start = bounds.grammar_start
    if start >= len(drafts):
        assert validated == drafts
    else:
        legal = fresh("xgrammar", "1?(ab)+c", ()).accept_prefix(drafts[start:])
        assert validated == drafts[: start + legal]
    scheduled = [*validated, *[-1] * num_padding]
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": scheduled})
    assert rows is not None
    bounds = manager._get_constraint_bounds(request, validated)
    assert rows.tolist() == rows_token_by_token(fresh("xgrammar", "1?(ab)+c", ()), scheduled, bounds)
    assert walks.accept_tokens(request, list(validated))
    structured = request.structured_output_request
    assert structured is not None
    assert bool(structured.reasoning_ended) == (MARKER in validated)
    moved = structured.grammar.session.cursor.matcher
    plain = fresh("xgrammar", "1?(ab)+c", validated[start:])
    assert moved.finished == plain.finished
    assert moved.finished or row_of(moved) == row_of(plain)


def test_reasoning_that_a_prompt_has_ended_is_not_looked_for_again() -> None:
    class EndedByThePrompt(ToyManager):
        """As vLLM says it of a prompt: restricted from the start, and nothing is noted."""

        def _get_constraint_bounds(self, *_: object, **__: object) -> ToyBounds:
            return ToyBounds(0, 0)

    walks, _ = new_walks(EndedByThePrompt(MARKER))
    request = new_request("r", "(ab)+c")
    assert walks.grammar_bitmask({"r": request}, ["r"], {}) is not None
    assert walks.accept_tokens(request, [A])
    assert request.structured_output_request is not None
    assert request.structured_output_request.reasoning_ended


def test_the_layout_with_padding() -> None:
    walks, bitmask = new_walks()
    request = new_request("r", "(ab)+c")
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": [A, -1, -1]})
    assert rows is not None
    start, behind_a = (row_of(fresh("xgrammar", "(ab)+c", done)) for done in ((), (A,)))
    assert rows.tolist() == [start, behind_a, ONES, ONES]
    assert bitmask[4].tolist() == [0x5A5A]


def test_a_request_without_drafts_and_one_without_grammar() -> None:
    walks, _ = new_walks()
    free, bound = ToyRequest("free"), new_request("bound", "(ab)+c")
    assert walks.validate_tokens(free, [17, 4]) == [17, 4]
    assert walks.accept_tokens(free, [17])
    assert walks.grammar_bitmask({"free": free}, [], {}) is None
    rows = walks.grammar_bitmask({"free": free, "bound": bound}, ["bound"], {})
    assert rows is not None
    assert rows.tolist() == [row_of(fresh("xgrammar", "(ab)+c", ()))]


def test_rows_behind_the_end_are_ones_and_what_is_drawn_there_is_ignored() -> None:
    walks, _ = new_walks()
    request = new_request("r", "(ab)+c")
    assert walks.validate_tokens(request, [3, C, STOP, A]) == [3, C, STOP]
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": [3, C, STOP]})
    assert rows is not None
    assert rows[3].tolist() == ONES
    assert walks.accept_tokens(request, [3, C, STOP])
    assert walks.validate_tokens(request, [A]) == []
    rows = walks.grammar_bitmask({"r": request}, ["r"], {})
    assert rows is not None
    assert rows.tolist() == [ONES]
    kept = [A, B]
    assert walks.accept_tokens(request, kept)  # vLLM goes on where a request ignores its end
    assert kept == [A, B]


def failing(request: ToyRequest) -> ToyRequest:
    """The same request; its backend raises from now on."""
    assert request.structured_output_request is not None

    def refuse(*_: object) -> None:
        raise RuntimeError("out of order")

    grammar = request.structured_output_request.grammar
    grammar._matcher = SimpleNamespace(accept_prefix=refuse, rollback=refuse)
    grammar._cursor.walk_calls = refuse
    grammar._cursor.native_calls = lambda: None
    return request


def fail_by_backend(walks: Walks) -> ToyRequest:
    request = failing(new_request("bad", "(ab)+c"))
    walks.grammar_bitmask({"bad": request}, ["bad"], {})
    return request


def fail_by_validation(walks: Walks) -> ToyRequest:
    request = failing(new_request("bad", "(ab)+c"))
    assert walks.validate_tokens(request, [3]) == []
    return request


def fail_by_unmasked_token(_: Walks) -> ToyRequest:
    return new_request("bad", "(12){2}")


@pytest.mark.parametrize("make", [fail_by_backend, fail_by_validation, fail_by_unmasked_token])
def test_a_request_fails_alone_and_none_of_its_tokens_is_kept(
    make: Callable[[Walks], ToyRequest], caplog: pytest.LogCaptureFixture
) -> None:
    walks, _ = new_walks()
    bad, good = make(walks), new_request("good", "(ab)+c")
    drawn = [A, B]
    assert not walks.accept_tokens(bad, drawn)
    assert drawn == []
    assert "request bad fails: " in caplog.text
    assert walks.validate_tokens(bad, [A]) == []
    batch = {"bad": bad, "good": good}
    rows = walks.grammar_bitmask(batch, ["bad", "good"], {"bad": [A], "good": [3]})
    assert rows is not None
    assert rows[:2].tolist() == [ONES, ONES]
    assert rows[2:].tolist() == [row_of(fresh("xgrammar", "(ab)+c", done)) for done in ((), (3,))]
    assert walks.accept_tokens(good, [3, C])


def test_a_grammar_that_cannot_go_on_fails_the_request_in_the_next_step() -> None:
    chosen = backend("llguidance")
    walks, _ = new_walks()
    request = new_request("r", "a{2}x", "llguidance")  # no id of the vocabulary has an x
    matcher = chosen.matcher(chosen.compile(GrammarSpec.regex("a{2}x")))
    assert matcher.accept_prefix([A, A]) == 2
    with pytest.raises(DeadEndError):
        row_of(matcher)
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": [A, A]})
    assert rows is not None
    assert rows[2].tolist() == ONES
    assert walks.accept_tokens(request, [A, A])
    walks.grammar_bitmask({"r": request}, ["r"], {})
    drawn = [B]
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []


@pytest.mark.parametrize("token", [-1, -VOCABULARY.num_words * 32, VOCABULARY.num_words * 32, 1 << 20])
def test_ids_that_no_row_has_fail_the_request(token: int) -> None:
    walks, _ = new_walks()
    request = new_request("r", "(ab)+c")
    walks.grammar_bitmask({"r": request}, ["r"], {"r": [A]})
    drawn = [A, token]
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []


@pytest.mark.parametrize(
    ("drafts", "drawn"),
    [
        ([A], [B, B]),  # not what was drafted
        ([A, B], [B, B, STOP]),
        ([A, -1, -1], [A, B, B]),  # from a row of padding
    ],
)
def test_tokens_that_do_not_follow_the_drafts_are_looked_at_by_the_grammar(
    drafts: list[int], drawn: list[int]
) -> None:
    walks, _ = new_walks()
    request = new_request("r", "(ab|ba)")
    walks.grammar_bitmask({"r": request}, ["r"], {"r": drafts})
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []


def test_more_tokens_than_rows_are_looked_at_by_the_grammar() -> None:
    walks, _ = new_walks()
    batch = {"p": new_request("p", "(ab)+c"), "q": new_request("q", "[abc]*")}
    walks.grammar_bitmask(batch, ["p", "q"], {})
    drawn = [A, C]  # q's row would allow the second
    assert not walks.accept_tokens(batch["p"], drawn)
    assert drawn == []


def test_a_token_that_its_row_forbids_fails_the_request(caplog: pytest.LogCaptureFixture) -> None:
    walks, _ = new_walks()
    request = new_request("r", "(ab)+c")
    assert walks.grammar_bitmask({"r": request}, ["r"], {"r": [A]}) is not None
    drawn = [A, C]
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []
    assert "refuses token id 2 at output position 1" in caplog.text


@pytest.mark.parametrize("name", BACKENDS)
def test_a_token_from_a_row_behind_which_nothing_can_follow_is_not_kept(name: str) -> None:
    walks, _ = new_walks()
    request = new_request("r", "a{2}x", name)  # no id of the vocabulary has an x
    rows = walks.grammar_bitmask({"r": request}, ["r"], {"r": [A, A]})
    assert rows is not None
    assert rows[2].tolist() == ONES
    drawn = [A, A, B]
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []


@pytest.mark.parametrize("drawn", [[A], [STOP]])
def test_a_request_that_fails_between_its_rows_and_its_tokens_stays_failed(drawn: list[int]) -> None:
    walks, _ = new_walks()
    request = new_request("r", "a*")
    walks.grammar_bitmask({"r": request}, ["r"], {})
    grammar = request.structured_output_request.grammar  # type: ignore[union-attr]  # made with one
    grammar.session.fail(MatcherError("a later step's drafts broke it"))
    assert not walks.accept_tokens(request, drawn)
    assert drawn == []
    assert grammar.session.error is not None


def test_tokens_are_looked_up_in_no_other_steps_rows() -> None:
    walks, _ = new_walks()
    batch = {"p": new_request("p", "(ab)+c"), "q": new_request("q", "[abc]*")}
    walks.grammar_bitmask(batch, ["p"], {})
    walks.grammar_bitmask(batch, ["q"], {})  # takes the row that p had
    drawn = [C]
    assert not walks.accept_tokens(batch["p"], drawn)
    assert drawn == []


def test_a_step_that_changed_since_it_was_scheduled_is_filled_anew() -> None:
    walks, _ = new_walks()
    batch = {name: new_request(name, "(ab)+c") for name in "pq"}
    walks.begin(batch, ["p", "q"], {"p": [3, 3, 3], "q": [3, 3]})
    rows = walks.grammar_bitmask({"q": batch["q"]}, ["q"], {"q": [3]})  # p was aborted, q's drafts cut
    assert rows is not None
    assert rows.tolist() == [row_of(fresh("xgrammar", "(ab)+c", done)) for done in ((), (3,))]
    walks.close()


def test_another_backend_in_the_manager_is_found_out() -> None:
    walks, _ = new_walks()
    request = ToyRequest("r", ToyStructuredRequest(object()))
    with pytest.raises(SpecGrammarError, match="the grammar of request r is a object"):
        walks.validate_tokens(request, [A])
    with pytest.raises(SpecGrammarError, match="the grammar of request r is a object"):
        walks.grammar_bitmask({"r": request}, ["r"], {})
    walks.close()  # and does not wait for what has failed


def test_what_only_vllms_own_walks_call_is_refused() -> None:
    grammar = new_grammar("(ab)+c")
    assert not grammar.is_terminated()
    with pytest.raises(SpecGrammarError, match=r"rollback\(2\).*scheduler_cls='specgrammar_vllm.Scheduler'"):
        grammar.rollback(2)
    with pytest.raises(SpecGrammarError, match="fill_bitmask"):
        grammar.fill_bitmask(None, 0)
    with pytest.raises(SpecGrammarError, match="reset"):
        grammar.reset()
