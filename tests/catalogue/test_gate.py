"""Grammars that begin behind a marker, such as the end of reasoning, which falls anywhere in a window."""

from __future__ import annotations

import pytest

from specgrammar.grammar.session import GrammarSession
from specgrammar.runtime.request import Request
from specgrammar.testing.toys import SPECIAL, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.catalogue.naive import FlaggedGrammar, Row, chain_rows, everything, greedy_path, masked
from tests.catalogue.ours import (
    AB,
    FREE,
    LIVE,
    ONE,
    PAIRS,
    REJECTED,
    A,
    decoded,
    engine_of,
    every_backend,
    gate_behind,
    ids,
    legal_behind,
    matcher,
    rows_for,
    state_of,
    step,
    wanting,
)
from tests.toys import legal_ids

MARKER = SPECIAL
WINDOW = 4
each_position = pytest.mark.parametrize("position", range(WINDOW))


def gated(name: str, tokens: list[int] | None = None) -> GrammarSession:
    """A session that has committed some tokens."""
    session = GrammarSession(VOCABULARY, matcher(PAIRS, name), gate=gate_behind(MARKER))
    session.commit(tokens or [])
    return session


def window(position: int) -> list[int]:
    """Free text, the marker at a position, and pairs."""
    return [*[ONE] * position, MARKER, *[AB] * (WINDOW - 1 - position)]


@every_backend
@each_position
def test_failure_09_the_marker_at_each_position_of_a_window(name: str, position: int) -> None:
    block = window(position)
    naive = block[-1] == MARKER  # looked for in the last token, which was the only one of a step
    assert naive == (position == WINDOW - 1), "seen at the end of a window and nowhere else"

    session = gated(name, block)
    assert session.engaged
    assert legal_ids(state_of(session)) == legal_behind(PAIRS, block[position + 1 :], name)


def naive_rows(name: str, committed: list[int], drafts: list[int]) -> list[Row]:
    """Decides once a step, by what is committed, whether the grammar has begun."""
    if MARKER not in committed:
        return [everything()] * (len(drafts) + 1)
    return chain_rows(matcher(PAIRS, name), drafts)


@every_backend
@each_position
def test_failure_10_rows_behind_the_marker_are_unmasked(name: str, position: int) -> None:
    drafts = [*window(position), ONE]  # the model wants to go on with free text
    logits = wanting(*drafts, ONE)
    naive = greedy_path(masked(logits, naive_rows(name, [], drafts)), drafts)
    assert naive == [*drafts, ONE], "free text behind the marker"

    session = gated(name)
    tree = HostTree.from_chains([[A, *drafts]])
    buffer = rows_for(len(drafts) + 1)
    status = session.fill(tree, buffer)
    assert status.tolist() == [FREE] * (position + 1) + [LIVE] * (WINDOW - position) + [REJECTED]
    for node in range(position + 1, WINDOW + 1):
        assert ids(buffer[node]) == legal_behind(PAIRS, drafts[position + 1 : node], name)
    (output,) = step([session], tree, logits)
    assert output[:WINDOW] == drafts[:WINDOW]
    assert output[WINDOW:] in ([A], [AB]), "the target's own token, under the grammar"


@every_backend
def test_failure_11_tokens_before_the_marker_are_fed_to_the_grammar(name: str) -> None:
    block = [A, MARKER, AB]
    naive = FlaggedGrammar(matcher(PAIRS, name))
    assert MARKER in block
    assert not naive.accept_tokens(block), "the whole block, since the marker is in it: the request is killed"
    assert legal_ids(naive.matcher) == legal_behind(PAIRS, [A], name), "or goes on in the middle of a pair"

    session = gated(name, block)
    assert session.error is None
    assert legal_ids(state_of(session)) == legal_behind(PAIRS, [AB], name)


@pytest.mark.parametrize("algorithm", ["none", "ngram", "chain"])
def test_failure_12_a_gate_that_never_opens_is_not_told(algorithm: str) -> None:
    free = Request("free", (A, 1, A, 1), None, max_new_tokens=12)
    never = Request("never", free.prompt_tokens, PAIRS, max_new_tokens=12, grammar_start=(MARKER,) * 3)
    engine, _ = engine_of(algorithm)
    outputs = decoded(engine, free, never)
    naive = [(outputs[name].text, outputs[name].finish_reason) for name in ("free", "never")]
    assert naive[0] == naive[1], "nothing in text and finish reason says that the grammar was never asked"

    assert outputs["never"].grammar_engaged is False
    assert engine.trace.num_never_engaged == 1
    (opened,) = decoded(
        engine, Request("opens", free.prompt_tokens, PAIRS, grammar_start=outputs["free"].token_ids[:2])
    ).values()
    assert opened.grammar_engaged
    assert engine.trace.num_never_engaged == 1
