"""How sglang moves our grammars: the result processor's own `advance_grammar_fsm`, on random schedules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.toys import STOP, VOCABULARY, specs_for
from tests.sglang_adapter.pieces import load
from tests.sglang_adapter.requests import THINK_END, ours, request, theirs, thinking
from tests.toys import BACKEND_NAMES, backend, legal_ids

WIDTH = 4


def advance(requests: list[Any], runs: list[list[int]], *, decode: bool = True) -> SimpleNamespace:
    """One result of a batch, moved over by sglang; returns it."""
    tokens = torch.full((len(runs), WIDTH if decode else 1), 99)
    for row, run in zip(tokens, runs, strict=True):
        row[: len(run)] = torch.tensor(run)
    result = SimpleNamespace(
        grammar_advanced=False,
        grammar_retained_tokens=None,
        copy_done=None,
        next_token_ids=tokens.flatten(),
        accept_lens=torch.tensor([len(run) for run in runs]),
        speculative_num_draft_tokens=WIDTH,
        speculative_output_stride=None,
    )
    mode = SimpleNamespace(is_decode=lambda: decode, is_extend=lambda: not decode)
    batch = SimpleNamespace(reqs=requests, has_grammar=True, forward_mode=mode)
    kind = load().SchedulerBatchResultProcessor
    processor = object.__new__(kind)
    kind.advance_grammar_fsm(processor, result, batch)
    retained = result.grammar_retained_tokens
    kind.advance_grammar_fsm(processor, result, batch)  # a barrier and the processor may both ask
    assert result.grammar_advanced
    assert result.grammar_retained_tokens == retained
    return result


def row_of(grammar: Any) -> list[int]:
    rows = grammar.allocate_vocab_mask(VOCABULARY.vocab_size, 1, "cpu")
    if not grammar.is_terminated():
        grammar.fill_vocab_mask(rows, 0)
    words: list[int] = rows[0].tolist()
    return words


@st.composite
def run(draw: st.DrawFn, grammar: Any) -> list[int]:
    """Tokens that a step committed: mostly legal, perhaps on behind the end, seldom refused."""
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, WIDTH))):
        if grammar.matcher.finished or draw(st.integers(0, 15)) == 0:
            tokens.append(draw(st.integers(0, VOCABULARY.vocab_size - 1)))
            continue
        legal = legal_ids(grammar.matcher)
        tokens.append(draw(st.sampled_from(legal)))
        grammar.matcher.accept(tokens[-1])
    return tokens


@pytest.mark.parametrize("name", BACKEND_NAMES)
@given(data=st.data())
@settings(max_examples=150)
def test_grammars_advance_and_end_as_those_of_sglang(name: str, data: st.DataObject) -> None:
    kinds = [spec for spec in specs_for(backend(name).facts) if not spec.kind.startswith("json")]
    specs = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    both = [[request(make(name, spec)) for spec in specs] for make in (theirs, ours)]
    for step in range(data.draw(st.integers(1, 4))):
        runs = [data.draw(run(_ahead(ours_request.grammar))) for ours_request in both[1]]
        if step == 0:
            runs = [tokens[:1] for tokens in runs]
        if name == "llguidance":
            runs = [_up_to_stop(tokens) for tokens in runs]
        results = [advance(requests, runs, decode=step > 0) for requests in both]
        assert results[0].grammar_retained_tokens == results[1].grammar_retained_tokens
        for one, other in zip(*both, strict=True):
            ends = [getattr(req, "to_finish", None) for req in (one, other)]
            assert (ends[0] is None) == (ends[1] is None)
        keep = [
            i for i, req in enumerate(both[1]) if not hasattr(req, "to_finish") and not _ended(req, runs[i])
        ]
        both = [[requests[i] for i in keep] for requests in both]
        for one, other in zip(*both, strict=True):
            assert row_of(one.grammar) == row_of(other.grammar)
        if not keep:
            return


def _ahead(grammar: Any) -> Any:
    """A copy to walk ahead on."""
    copied = grammar.copy()
    copied.matcher = grammar.matcher.fork()
    return copied


def _ended(req: Any, tokens: list[int]) -> bool:
    """Whether sglang has ended the request: at a stop token, whatever the grammar says."""
    return bool(req.grammar.is_terminated()) or STOP in tokens


def _up_to_stop(tokens: list[int]) -> list[int]:
    """sglang's llguidance goes on behind a stop token where the grammar could have gone on, too."""
    return tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens


def test_what_is_behind_the_end_is_cut() -> None:
    spec = GrammarSpec.regex("a{2,5}(b|c)?")
    requests = [request(make("xgrammar", spec)) for make in (theirs, ours)]
    retained = advance(requests, [[0, 0, STOP, 0], [0, 0, STOP, 0]]).grammar_retained_tokens
    assert retained == [[0, 0, STOP], [0, 0, STOP]]


def test_a_refused_token_ends_the_request_with_the_reason() -> None:
    req = request(ours("xgrammar", GrammarSpec.choice(["ab"])))
    assert advance([req], [[0, 2, 1]]).grammar_retained_tokens == [[0]]
    assert "refuses token id 2" in req.to_finish.message


def test_a_gated_grammar_begins_behind_the_reasoning() -> None:
    spec = GrammarSpec.choice(["c"])
    for make in (theirs, ours):
        req = request(thinking(make("xgrammar", spec)))
        advance([req], [[5, *THINK_END]])
        assert row_of(req.grammar) == [1 << 2]
        assert advance([req], [[2, STOP, 0]]).grammar_retained_tokens == [[2, STOP]]


def test_copies_begin_anew() -> None:
    grammar = ours("xgrammar", GrammarSpec.choice(["ab"]))
    grammar.accept_token(0)
    copied = grammar.copy()
    assert row_of(copied) == [1 << 0 | 1 << 3]
    assert row_of(grammar) == [1 << 1]
    assert copied.grammar_stats.is_cache_hit
    grammar.rollback(1)
    assert row_of(grammar) == row_of(copied)


def test_dense_masks_are_applied_row_by_row() -> None:
    grammars = [ours("xgrammar", GrammarSpec.choice(["ab"])), ours("llguidance", GrammarSpec.regex("[abc12]*"))]
    rows = grammars[0].allocate_vocab_mask(VOCABULARY.vocab_size, 3, "cpu")
    entries = [load().GrammarRow(row, grammar) for row, grammar in enumerate(grammars)]
    grammars[0].fill_vocab_mask_batched(entries, rows)
    logits = torch.zeros(3, VOCABULARY.vocab_size)
    grammars[0].apply_vocab_mask(logits=logits, vocab_mask=grammars[0].move_vocab_mask(rows, "cpu"))
    legal = [{0, 3}, {0, 1, 2, 3, 4, 5, 12, 13, 14, STOP}, set(range(VOCABULARY.vocab_size))]
    assert [set(np.flatnonzero(row == 0).tolist()) for row in logits.numpy()] == legal
