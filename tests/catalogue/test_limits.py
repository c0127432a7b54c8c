"""Limits and stop tokens: who decides that a request ends, and by which ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specgrammar.errors import RequestError
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.stops import StopRules
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec, Vocabulary
from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.registry import BACKENDS, create
from specgrammar.runtime.request import Request
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import PAD, STOP, TEXTS, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree
from tests.catalogue.naive import FlaggedGrammar, row_behind
from tests.catalogue.ours import (
    AB,
    ENDED,
    LIVE,
    ONE,
    PAIRS,
    A,
    B,
    C,
    Scripted,
    chains,
    decoded,
    engine_of,
    every_backend,
    ids,
    matcher,
    rows_for,
)
from tests.toys import legal_ids

OPEN, CLOSE = 6, 7
BRACES = GrammarSpec.regex(r"(\{\}){3}")


def forced_run(state: GrammarMatcher) -> list[int]:
    """What the grammar leaves no choice about (jump-forward)."""
    run: list[int] = []
    while not state.finished and len(legal := legal_ids(state)) == 1:
        run += legal
        state.accept(legal[0])
    return run


def forced_drafts(view: RequestView) -> list[int]:
    """The same as drafts, read from where a request's grammar stands."""
    chain = [view.tokens[-1]]
    while view.grammar is not None and len(chain) < 9:
        rows = rows_for(len(chain))
        status = view.grammar.fill(HostTree.from_chains([chain]), rows)
        if status[-1] != LIVE or len(legal := ids(rows[-1])) > 1:
            break
        chain += legal
    return chain[1:]


def propose_forced(batch: DecodeBatch) -> DraftTree:
    return chains(batch, [forced_drafts(view) for view in batch.requests])


def test_failure_43_forced_runs_skip_the_stop_checks() -> None:
    limit, stop = 3, CLOSE
    naive = forced_run(matcher(BRACES))  # appended to the output, after the checks of the step
    assert naive == [OPEN, CLOSE] * 3 + [STOP]
    assert len(naive) > limit
    assert naive.index(stop) < len(naive) - 1

    request = Request("a", (A,), BRACES, max_new_tokens=limit)
    engine, target = engine_of(Scripted(propose_forced, needs="grammar"))
    output = decoded(engine, request)["a"]
    assert (output.token_ids, output.finish_reason) == ((OPEN, CLOSE, OPEN), "length")
    assert target.num_forwards == 1, "forced tokens are drafts like any other, and come out of one step"
    engine, _ = engine_of(Scripted(propose_forced, needs="grammar"))
    output = decoded(engine, Request("b", (A,), BRACES, stop_token_ids=(stop,)))["b"]
    assert (output.token_ids, output.finish_reason) == ((OPEN, CLOSE), "stop")


def test_failure_58_a_stop_string_inside_an_accepted_block_is_missed() -> None:
    stop, block = "ba", [AB, A, AB, ONE]
    text = VOCABULARY.text(block).decode()
    assert stop in text
    assert stop not in text[-len(stop) - 1 :], "the tail that an engine looks at when a step is one token"

    session = GrammarSession(VOCABULARY, stops=StopRules(stop_strings=(stop,)))
    assert session.commit(block) == 2
    assert (session.output, session.finish, session.text) == ([AB, A], "stop_string", "a")


def test_failure_59_max_new_tokens_is_overshot_by_accepted_drafts() -> None:
    limit = 3

    def naive(block: list[int]) -> tuple[list[int], str | None]:
        output = list(block)
        if len(output) >= limit:  # before the stop tokens
            return output, "length"
        return output, "stop" if STOP in output else None

    assert naive([AB] * 5) == ([AB] * 5, "length")
    assert naive([AB, STOP, A, B])[1] == "length"

    for block, kept, reason in (([AB] * 5, 3, "length"), ([AB, STOP, A, B], 2, "stop")):
        stops = StopRules({STOP}, max_new_tokens=limit)  # type: ignore[arg-type]  # any collection of ids
        session = GrammarSession(VOCABULARY, stops=stops)
        assert session.commit(block) == kept
        assert (session.output, session.finish) == (block[:kept], reason)


@every_backend
def test_failure_62_a_grammar_that_can_only_end_refuses_the_stop_token(name: str) -> None:
    once = GrammarSpec.regex("ab")
    naive: Any = matcher(once, "llguidance")
    native = (
        naive._state.native
    )  # the library's own, which stops by itself where nothing but the end can follow
    assert native.try_consume_tokens([AB]) == 1
    assert native.is_stopped()
    assert native.try_consume_tokens([STOP]) == 0, "the token that the model says next is refused"

    session = GrammarSession(VOCABULARY, matcher(once, name))
    session.commit([AB])
    for _ in range(2):
        assert session.validate([STOP, AB]) == 1
        rows = rows_for(2)
        assert session.fill(HostTree.from_chains([[AB, STOP]]), rows).tolist() == [LIVE, ENDED]
        assert ids(rows[0]) == [STOP]
    session.commit([STOP])
    assert (session.finish, session.error) == ("stop", None)


def test_failure_63_of_several_stop_strings_a_later_one_is_taken() -> None:
    stops, block = ("c", "b"), [A, B, C]

    def naive(tokens: list[int]) -> str | None:
        text = VOCABULARY.text(tokens).decode()
        return next((stop for stop in stops if stop in text), None)

    one_by_one = next(found for n in range(1, 4) if (found := naive(block[:n])))
    assert (one_by_one, naive(block)) == ("b", "c"), "the request's order, not the text's"

    outputs = []
    for width in (1, 2, 3):
        session = GrammarSession(VOCABULARY, stops=StopRules(stop_strings=stops))
        for begin in range(0, 3, width):
            session.commit(block[begin : begin + width])
        outputs.append((session.output, session.text, session.finish))
    assert outputs == [([A, B], "a", "stop_string")] * 3
    both = GrammarSession(VOCABULARY, stops=StopRules(stop_strings=stops))
    both.commit([A, TEXTS.index(b"bc")])
    assert both.text == "a", "also where one token completes both"


def backend_over(name: str, vocabulary: Vocabulary) -> ReferenceBackend:
    """A backend over another vocabulary than the kit's."""
    made: ReferenceBackend = (
        ReferenceBackend(vocabulary) if name == "reference" else create(BACKENDS, name, vocabulary)
    )
    return made


def matcher_over(name: str, vocabulary: Vocabulary, spec: GrammarSpec) -> GrammarMatcher:
    made = backend_over(name, vocabulary)
    return made.matcher(made.compile(spec))


def legal_over(vocabulary: Vocabulary, state: GrammarMatcher) -> list[int]:
    rows = np.zeros((1, vocabulary.num_words), np.int32)
    state.fill_bitmask(rows, 0)
    return [i for i in range(vocabulary.vocab_size) if int(rows[0, i // 32]) >> (i % 32) & 1]


@every_backend
def test_failure_37_grammar_and_engine_disagree_on_the_stop_token(name: str) -> None:
    tokenizers = Vocabulary(VOCABULARY.tokens, stop_ids=(PAD,), special_ids=VOCABULARY.special_ids)
    naive = FlaggedGrammar(matcher_over(name, tokenizers, GrammarSpec.regex("ab")))
    assert naive.accept_tokens([AB])
    assert legal_ids(naive.matcher) == [PAD], "all that the grammar still allows"
    assert PAD != STOP, "and the engine waits for another token"
    naive.accept_tokens([PAD])
    with pytest.raises(RequestError):
        row_behind(naive.matcher)

    session = GrammarSession(tokenizers, matcher_over(name, tokenizers, GrammarSpec.regex("ab")))
    assert session.commit([AB, PAD, AB]) == 2, "matcher and stop rules are made from one vocabulary"
    assert (session.finish, session.error) == ("stop", None)
    other = GrammarSession(VOCABULARY, matcher_over(name, tokenizers, GrammarSpec.regex("ab")))
    other.commit([AB, STOP])
    assert other.finish == "error", "an end that the grammar does not share is no end"


@every_backend
def test_failure_38_several_stop_tokens_of_which_the_grammar_knows_one(name: str) -> None:
    texts = (*TEXTS, b"", b"c", b"")  # the second stop token has a text, as `<|im_end|>` has
    strings = GrammarSpec.regex("a[bc]{2,4}")
    one = Vocabulary(texts, stop_ids=(STOP,), special_ids=frozenset({STOP}))
    naive = matcher_over(name, one, strings)
    naive.accept_prefix([A, B])
    assert PAD in legal_over(one, naive), "legal where its text is, so the engine stops inside the string"
    assert STOP not in legal_over(one, naive)

    both = Vocabulary(texts, stop_ids=(STOP, PAD), special_ids=frozenset({STOP, PAD}))
    state = matcher_over(name, both, strings)
    for tokens, at_end in (([A], False), ([B], False), ([B], True)):
        state.accept_prefix(tokens)
        assert [token in legal_over(both, state) for token in (STOP, PAD)] == [at_end] * 2
    for stop in (STOP, PAD):
        session = GrammarSession(both, matcher_over(name, both, strings))
        session.commit([A, B, B, stop, B])
        assert (session.output[-1], session.finish, session.error) == (stop, "stop", None)


@every_backend
def test_failure_39_a_stop_token_is_also_a_terminal(name: str) -> None:
    plain = Vocabulary(VOCABULARY.tokens, stop_ids=(STOP,), special_ids=VOCABULARY.special_ids)
    naive = matcher_over(name, plain, PAIRS)
    naive.accept(A)
    assert B in legal_over(plain, naive), "the grammar reads a b, the engine, whose stop token it is, an end"

    vocabulary = Vocabulary(VOCABULARY.tokens, stop_ids=(B,), special_ids=frozenset({B, STOP}))
    state = matcher_over(name, vocabulary, PAIRS)
    assert legal_over(vocabulary, state) == [A, AB]
    session = GrammarSession(vocabulary, state)
    session.commit([AB])
    assert legal_over(vocabulary, state) == [A, B, AB], "a stop token is never text: it is legal at the end"
    assert session.validate([A, B]) == 1
    session.commit([B])
    assert (session.finish, session.error, session.text) == ("stop", None, "ab")
