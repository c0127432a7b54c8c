"""The rows behind `build_grammar_vocab_mask`: those that sglang's own function makes, for the same trees."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.strategies import trees
from specgrammar.testing.toys import STOP, VOCABULARY, specs_for
from specgrammar.trees.convert import qlen_mask
from specgrammar.trees.tree import HostTree
from tests.sglang_adapter.conftest import INSTALLED
from tests.sglang_adapter.pieces import load
from tests.sglang_adapter.requests import THINK_END, ours, request, rows_of, theirs, thinking, tree_of
from tests.toys import BACKEND_NAMES, backend

NUM_TREES = 500 if INSTALLED else 60


def hook(**call: Any) -> Any:
    """The hook around sglang's function, which must not be needed."""

    def unused(**_: Any) -> None:
        raise AssertionError("the batch was left to sglang")

    return load().mask.build_mask(unused, **call)


@st.composite
def requests(draw: st.DrawFn, name: str, num_requests: int) -> tuple[list[Any], list[Any]]:
    """Grammars after some legal tokens, as sglang's objects and as ours; some gated, some without a grammar."""
    pairs: list[tuple[Any, Any]] = []
    for _ in range(num_requests):
        kind = draw(st.sampled_from(["plain", "plain", "thinking", "none"]))
        if kind == "none":
            pairs.append((None, None))
            continue
        spec = draw(st.sampled_from(_specs(name)))
        pair = [theirs(name, spec), ours(name, spec)]
        if kind == "thinking":
            pair = [thinking(grammar) for grammar in pair]
            for token in draw(st.lists(st.sampled_from([0, 1, 2]), max_size=4)):
                if pair[0]._is_thinking():
                    for grammar in pair:
                        grammar.accept_token(token)
        else:
            for _ in range(draw(st.integers(0, 3))):
                legal = [t for t in range(VOCABULARY.vocab_size) if t != STOP and _allows(pair[1], t)]
                if not legal:
                    break
                token = draw(st.sampled_from(legal))
                for grammar in pair:
                    grammar.accept_token(token)
        pairs.append((pair[0], pair[1]))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _specs(name: str) -> list[GrammarSpec]:
    """Small grammars; at a dead end, which those of JSON have here, llguidance's own object ends sglang."""
    specs = specs_for(backend(name).facts)
    return [spec for spec in specs if name == "xgrammar" or not spec.kind.startswith("json")]


def _allows(grammar: Any, token: int) -> bool:
    rows = grammar.allocate_vocab_mask(VOCABULARY.vocab_size, 1, "cpu")
    grammar.fill_vocab_mask(rows, 0)
    if grammar.session.error is not None:  # a dead end
        return False
    return bool(rows[0, token // 32].item() >> (token % 32) & 1)


@pytest.mark.parametrize("name", BACKEND_NAMES)
@given(data=st.data())
@settings(max_examples=NUM_TREES)
def test_rows_are_those_of_sglang(name: str, data: st.DataObject) -> None:
    tree = data.draw(trees(vocab_size=VOCABULARY.vocab_size).filter(lambda tree: tree.bs > 0))
    their_grammars, our_grammars = data.draw(requests(name, tree.bs))
    if all(grammar is None for grammar in our_grammars):
        return
    expected = rows_of(load().build_grammar_vocab_mask, their_grammars, tree)
    got = rows_of(hook, our_grammars, tree)
    # Behind an end sglang's xgrammar has rows of ones, as we have; its llguidance goes on, and where nothing is
    # legal its xgrammar allows nothing, and there our request ends.
    differs = _behind_stop(tree) if name == "llguidance" else (expected == 0).all(axis=1)
    assert np.array_equal(got[~differs], expected[~differs])
    assert (got[differs] == -1).all()
    again = rows_of(hook, our_grammars, tree)
    assert np.array_equal(got, again), "the walk has moved a grammar"


def _behind_stop(tree: HostTree) -> NDArray[np.bool_]:
    """Which nodes of the dense layout are a stop token, or below one."""
    width = int(np.diff(tree.cu_nodes).max())
    tokens, _, _ = tree.to_dense(width)
    drafted = (tokens == STOP) & (np.arange(width) > 0)
    found: NDArray[np.bool_] = (qlen_mask(tree, width) & drafted[:, None, :]).any(axis=-1).reshape(-1)
    return found


def test_nodes_that_fill_a_tree_up_are_nobodys() -> None:
    """sglang's trees have as many nodes for every request; what is too many is linked from nowhere."""
    spec = GrammarSpec.choice(["ab", "abc"])
    tokens = torch.tensor([[2, 3, 0, 0, 1], [2, 0, 1, 2, 0]])
    next_token = torch.tensor(
        [[1, -1, -1, 4, -1], [1, 2, -1, -1, -1]]
    )  # a node that leads on, linked from nowhere
    next_sibling = torch.full((2, 5), -1)
    made = []
    for function, make in ((load().build_grammar_vocab_mask, theirs), (hook, ours)):
        mask = function(
            reqs=[request(make("xgrammar", spec)) for _ in range(2)],
            tree=load().GrammarTree.from_host(next_token, next_sibling, tokens.to(torch.int32)),
            sampling_info=SimpleNamespace(vocab_size=VOCABULARY.vocab_size, grammar_mask=None),
            device="cpu",
            barrier=None,
        )
        made.append(mask.vocab_mask.tolist())
    assert made[0] == made[1]
    assert [row == [-1] for row in made[1]] == [False, False, True, True, True, False, False, False, True, True]


def test_an_ended_request_and_one_without_a_grammar_have_rows_of_ones() -> None:
    spec = GrammarSpec.choice(["ab"])
    ended = ours("xgrammar", spec)
    for token in (3, STOP):
        ended.accept_token(token)
    tree = HostTree.from_chains([[STOP, 0], [0, 1], [0, 1]])
    rows = rows_of(hook, [ended, None, ours("xgrammar", spec)], tree).reshape(3, 2)
    assert (rows[:2] == -1).all()
    assert rows[2].tolist() == [1 << 0 | 1 << 3, -1]  # "a" and "ab"; token "b" is no beginning


def test_the_gate_opens_inside_a_tree() -> None:
    grammar = thinking(ours("xgrammar", GrammarSpec.choice(["c"])))
    rows = rows_of(hook, [grammar], HostTree.from_chains([[5, *THINK_END, 2]]))
    assert rows.reshape(-1).tolist() == [-1, -1, -1, 1 << 2, 1 << STOP]


def test_apply_masks_live_rows_alone_and_gives_the_memory_back() -> None:
    grammars = [ours("xgrammar", GrammarSpec.choice(["ab"])), None]
    for _ in range(20):  # more than the ring has slots
        mask = hook(
            reqs=[request(grammar) for grammar in grammars],
            tree=tree_of(HostTree.from_chains([[0, 3], [0, 1]])),
            sampling_info=SimpleNamespace(grammar_mask=None),
            device="cpu",
            barrier=None,
        )
        logits = torch.zeros(4, VOCABULARY.vocab_size)
        expected = mask.vocab_mask
        mask.apply(logits)
        for row, words in zip(logits, expected, strict=True):
            allowed = [bool(words[t // 32].item() >> (t % 32) & 1) for t in range(VOCABULARY.vocab_size)]
            assert [value == 0 for value in row.tolist()] == allowed


def test_a_failed_step_loses_no_memory() -> None:
    for _ in range(20):
        rows_of(hook, [ours("xgrammar", GrammarSpec.choice(["ab"]))], HostTree.from_chains([[0]]))


def test_the_barrier_comes_before_the_walk() -> None:
    grammar = ours("xgrammar", GrammarSpec.choice(["abc"]))
    mask = hook(
        reqs=[request(grammar)],
        tree=tree_of(HostTree.from_chains([[3]])),
        sampling_info=SimpleNamespace(grammar_mask=None),
        device="cpu",
        barrier=partial(grammar.accept_token, 3),
    )
    assert mask.vocab_mask.tolist() == [[1 << 2]]


def test_what_is_not_ours_is_left_to_sglang() -> None:
    spec = GrammarSpec.choice(["ab"])
    strict = load().ReasonerGrammarObject(ours("xgrammar", spec), THINK_END, enable_token_filter=True)
    strict.maybe_init_reasoning(True)
    covering = thinking(ours("xgrammar", spec))
    covering.set_reasoning_in_grammar()
    tree = HostTree.from_chains([[0, 1], [0, 3]])
    for other in (theirs("xgrammar", spec), strict, covering):
        with pytest.raises(AssertionError, match="left to sglang"):
            rows_of(hook, [other, ours("xgrammar", spec)], tree)
    # sglang's own walk over our objects makes the same rows.
    both = [ours("xgrammar", spec), thinking(ours("xgrammar", spec))]
    assert np.array_equal(rows_of(load().build_grammar_vocab_mask, both, tree), rows_of(hook, both, tree))


def test_a_dead_end_ends_its_request_where_llguidance_of_sglang_ends_the_batch() -> None:
    spec = GrammarSpec.json_object(whitespace="compact")
    dead = [theirs("llguidance", spec), ours("llguidance", spec)]
    for grammar in dead:
        grammar.accept_token(6)
        grammar.accept_token(8)
    tree = HostTree.from_chains([[8, 8], [0, 0]])  # behind `{""` no id spells a colon
    with pytest.raises(ValueError, match="NoExtension"):
        rows_of(load().build_grammar_vocab_mask, [dead[0], None], tree)
    rows = rows_of(hook, [dead[1], None], tree).reshape(-1)
    assert rows[1:].tolist() == [-1, -1, -1]
    assert rows[0] != -1
    dead[1].accept_token(8)
    rows_of(hook, [dead[1], None], tree)
    with pytest.raises(ValueError, match="no token here"):
        dead[1].accept_token(0)


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    spec = GrammarSpec.choice(["ab"])
    broken, healthy = ours("xgrammar", spec), ours("xgrammar", spec)

    def fail(*_: Any) -> None:
        raise RuntimeError("the matcher is broken")

    broken.matcher.native_calls = fail
    broken.session = type(broken.session)(VOCABULARY, broken.matcher)
    rows = rows_of(hook, [broken, healthy], HostTree.from_chains([[0, 3], [0, 3]])).reshape(2, 2)
    assert (rows[0] == -1).all()
    assert rows[1].tolist() == [1 << 0 | 1 << 3, 1 << STOP]
    with pytest.raises(ValueError, match="the matcher is broken"):
        broken.accept_token(3)  # whatever was sampled for it, nothing of it is kept
    healthy.accept_token(3)
