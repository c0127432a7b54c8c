"""Drafts that are no tokens, or were made for another step; results that come twice, or too late."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from specgrammar.errors import TreeError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.ledger import Ledger, RequestResult, StepResult
from specgrammar.runtime.outcome import Outcome
from specgrammar.runtime.request import Request
from specgrammar.testing.reference import ReferenceMatcher
from specgrammar.testing.toys import STOP, TEXTS, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree
from tests.catalogue.naive import FlaggedGrammar, chain_rows, everything, greedy_path, masked
from tests.catalogue.ours import (
    AB,
    LIVE,
    ONE,
    PADDING,
    PAIRS,
    REJECTED,
    A,
    B,
    C,
    Scripted,
    accepted,
    chains,
    decoded,
    engine_of,
    every_backend,
    ids,
    legal_behind,
    mask_of,
    matcher,
    matcher_of,
    plain_decoding,
    replayed,
    rows_for,
    session_of,
    state_of,
    step,
    tree_of,
    wanting,
)
from tests.toys import legal_ids

LONG = Request("a", (A, B, A, B), GrammarSpec.regex("(ab|bc|c){9,40}"), max_new_tokens=20)
OUTSIDE = (-1, VOCABULARY.vocab_size, 2**31)


class Watching(ReferenceMatcher):
    """Notes every id that it is asked about."""

    def accept(self, token: int) -> bool:
        self.__dict__.setdefault("seen", []).append(token)
        return super().accept(token)


@pytest.mark.parametrize("placeholder", OUTSIDE)
def test_failure_21_placeholders_reach_a_matcher(placeholder: int) -> None:
    naive = matcher_of(Watching, PAIRS)
    naive.accept_prefix([AB, -1])
    assert naive.__dict__["seen"] == [AB, -1]
    assert TEXTS[-1] == b", ", "and Python finds a text for it: the last one"

    watching = matcher_of(Watching, PAIRS)
    session = GrammarSession(VOCABULARY, watching)
    drafts = [AB, placeholder, A]
    assert session.validate(drafts) == 1
    assert session.follow(drafts) == 1
    session.advance()
    if placeholder >= 0:
        status = session.fill(HostTree.from_chains([[A, *drafts]]), rows_for(4))
        assert status[2:].tolist() == [REJECTED] * 2
    session.commit(drafts)
    assert (session.output, session.finish) == ([AB], "error")
    assert f"token id {placeholder} at output position 1" in str(session.error)
    assert set(watching.__dict__["seen"]) == {AB}


@every_backend
def test_failure_24_forks_are_advanced_by_the_argmax_and_not_by_the_draft(name: str) -> None:
    spec, drafts = GrammarSpec.regex("(ab|bc|c)+"), [A]
    wanted = wanting(C, A)
    wanted[0, A] = 8.0  # nearly as likely: a sampled verification takes the draft
    fork = matcher(spec, name).fork()
    fork.accept(int(masked(wanted, chain_rows(matcher(spec, name), drafts))[0].argmax()))
    assert legal_ids(fork) == legal_behind(spec, [C], name)
    assert A in legal_ids(fork), "behind the draft this is not legal"

    rows = rows_for(2)
    session_of(spec, name=name).fill(HostTree.from_chains([[A, *drafts]]), rows)
    assert ids(rows[1]) == legal_behind(spec, drafts, name)
    assert A not in ids(rows[1])


def with_breaks(engine: Engine, request: Request, every: int = 3) -> tuple[int, ...]:
    """A request's tokens where it is preempted and resumed at every few steps."""
    engine.add(request)
    for _ in range(1000):
        for _ in range(every):
            for output in engine.step():
                return output.token_ids
        engine.preempt(request.request_id)
        engine.resume(request.request_id)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("stamped_anew", [False, True])
def test_failure_25_drafts_are_stale_after_a_preemption(stamped_anew: bool) -> None:
    kept = {"a": [B]}  # by request id: made behind the first a
    history = [A, B]  # what was committed before the request came back
    naive = FlaggedGrammar(replayed(PAIRS, history))
    assert not naive.accept_tokens(kept["a"]), "the grammar refuses what the engine verified and took"

    first: list[DraftTree] = []

    def stubborn(batch: DecodeBatch) -> DraftTree:
        if len(first) < 3:
            first.append(chains(batch, [[A, B, C]] * len(batch)))
        made = first[len(first) // 2]
        return dataclasses.replace(made, step=batch.step) if stamped_anew else made

    engine, _ = engine_of(Scripted(stubborn))
    assert list(with_breaks(engine, LONG)) == plain_decoding(LONG)
    assert engine.trace.num_stale_drafts > 5


def test_failure_26_placeholders_outlive_their_window() -> None:
    table = np.arange(VOCABULARY.vocab_size)
    assert table[[AB, -1]].tolist() == [AB, VOCABULARY.vocab_size - 1], (
        "a lookup takes the last row, and tells nobody"
    )

    def linked(batch: DecodeBatch) -> DraftTree:
        return DraftTree.from_host(
            batch.step, HostTree.from_chains([[v.tokens[-1], -1] for v in batch.requests])
        )

    engine, target = engine_of(Scripted(linked))
    engine.add(LONG)
    with pytest.raises(TreeError, match="padding"):
        engine.step()
    assert target.num_forwards == 0, "found before the model or a grammar reads it"

    cut = tree_of([A, AB, -1, -1], [-1, 0, -1, -1])  # as what is left of a shape, they are dead
    session = session_of(PAIRS)
    assert session.fill(cut, rows_for(4))[2:].tolist() == [PADDING] * 2
    assert step([session], cut, wanting(AB, AB, ONE, ONE)) == [[AB, AB]]


@every_backend
def test_failure_27_a_lost_hand_off_gives_permissive_rows(name: str) -> None:
    handed_over: list[int] | None = None  # the slot was overwritten, or belonged to another batch
    wanted = wanting(AB, ONE)
    rows = [everything()] * 2 if handed_over is None else chain_rows(matcher(PAIRS, name), handed_over)
    assert greedy_path(masked(wanted, rows), [AB]) == [AB, ONE]

    tree = HostTree.from_chains([[A, AB]])
    for status, bonus in ((np.zeros(2, np.int8), -1), (np.array([LIVE, 0], np.int8), AB)):
        paths = accepted(tree, wanted, status)
        assert (paths.accept_length.tolist(), paths.bonus_token.tolist()) == ([0], [bonus]), "unfilled is dead"
    with pytest.raises(TreeError, match="1 sessions for a tree of 2"):
        mask_of([session_of(PAIRS, name=name)], HostTree.from_chains([[A, AB], [A]]))

    def lost(batch: DecodeBatch) -> DraftTree:
        other = HostTree.from_chains([[A, B], [B]])
        return DraftTree(batch.step, other.cu_nodes, other)

    engine, _ = engine_of(Scripted(lost))
    output = decoded(engine, LONG)["a"]
    assert list(output.token_ids) == plain_decoding(LONG)
    assert engine.trace.num_stale_drafts == output.num_verify_steps == len(output.token_ids)


def published(ledger: Ledger, number: int, tokens: Sequence[int]) -> None:
    """Publish what a step found for the request `a`."""
    result = StepResult(number, (RequestResult("a", tuple(tokens), len(tokens) - 1, True),))
    ledger.publish(Outcome(lambda: result))


@every_backend
def test_failure_28_a_token_is_accepted_twice(name: str) -> None:
    spec = GrammarSpec.regex("a{2,5}")
    naive = matcher(spec, name)
    for _ in ("the scheduler", "the worker"):
        naive.accept(A)
    assert legal_ids(naive) == legal_behind(spec, [A, A], name) != legal_behind(spec, [A], name)

    session, ledger = session_of(spec, name=name), Ledger()
    ledger.join("a", [B], session, 0)
    published(ledger, 0, [A])
    published(ledger, 0, [A])
    for _ in range(3):
        ledger.resolve()
        ledger.advance_pending()
    assert session.output == [A]
    assert legal_ids(state_of(session)) == legal_behind(spec, [A], name)
    assert ledger.num_stale == 1


@pytest.mark.parametrize("algorithm", ["none", "ngram", "chain"])
def test_failure_29_the_grammar_restarts_after_a_recompute(algorithm: str) -> None:
    request = dataclasses.replace(LONG, grammar=GrammarSpec.regex("abab[12]{2,9}c"))
    output = plain_decoding(request)
    naive = matcher(request.grammar)  # type: ignore[arg-type]  # it has one
    assert legal_ids(naive) != legal_behind(request.grammar, output[:4])  # type: ignore[arg-type]
    assert ONE not in legal_ids(naive), "made anew with the cache, while the history is where it was"

    engine, _ = engine_of(algorithm)
    assert list(with_breaks(engine, request, every=2)) == output


@pytest.mark.parametrize("token", OUTSIDE[1:])
def test_failure_51_an_id_outside_the_vocabulary_poisons_a_matcher(token: int) -> None:
    naive: Any = matcher(PAIRS, "llguidance")
    native = naive._state.native  # the library's own
    assert not native.consume_token(min(token, 2**31))
    assert native.is_error()
    assert not native.consume_token(AB), "legal, and refused for good"

    session = session_of(PAIRS, name="llguidance")
    assert session.validate([token]) == 0
    assert session.fill(HostTree.from_chains([[A, token]]), rows_for(2)).tolist()[1] == REJECTED
    assert session.follow([token]) == 0
    assert session.commit([AB, STOP]) == 2
    assert session.error is None


def test_failure_60_a_request_id_comes_back_while_an_old_result_is_queued() -> None:
    outputs: dict[str, list[int]] = {"a": []}
    queued = [("a", [AB, ONE])]
    outputs["a"] = []  # aborted, and sent again under the same id
    for request_id, tokens in queued:
        outputs[request_id] += tokens
    assert outputs["a"] == [AB, ONE], "tokens of the request before it"

    ledger, old, new = Ledger(), session_of(None), session_of(PAIRS)
    ledger.join("a", [A], old, 0)
    ledger.join("b", [A], session_of(None), 0)  # somebody else stays, so that the queue does
    published(ledger, 0, [AB, ONE])
    ledger.leave("a")
    ledger.join("a", [A], new, 1)
    ledger.advance_pending()
    assert (old.output, new.output, ledger.num_stale) == ([], [], 1)
    published(ledger, 1, [AB])
    ledger.advance_pending()
    assert (new.output, new.error) == ([AB], None)
