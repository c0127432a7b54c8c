"""A native walk is the walk in Python: the same rows and statuses, whatever the batch, layout and threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.errors import MatcherError
from specgrammar.grammar.native_walk import walk_natively
from specgrammar.grammar.rows import MaskRows
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.testing.checks.native_play import TWO_WORDS
from specgrammar.testing.reference import ReferenceMatcher
from specgrammar.testing.strategies import trees
from specgrammar.testing.toys import CONTROL, GRAMMARS, OTHER_STOP, PAD, STOP
from specgrammar.trees.tree import HostTree
from tests.called_back import CalledBack
from tests.native.walks import KINDS, SPECS, Always, matcher, session, sessions, walked

INTERESTING = [
    0,
    39,
    0,
    39,
    1,
    38,
    3,
    36,
    2,
    STOP,
    OTHER_STOP,
    PAD,
    CONTROL,
    TWO_WORDS.vocab_size,
    63,
    64,
    2**40,
]
"""Texts of both words first, legal ones more often, then what is no text, and what no row has a bit for."""
THREADS = {1: None, 2: Always(2), 3: Always(3)}
LIVE, ENDED, REJECTED, PADDING = NodeStatus.LIVE, NodeStatus.ENDED, NodeStatus.REJECTED, NodeStatus.PADDING


def toy_trees(max_requests: int = 5) -> st.SearchStrategy[HostTree]:
    def interesting(tree: HostTree) -> HostTree:
        return dataclasses.replace(tree, draft_tokens=np.array([*INTERESTING, -1])[tree.draft_tokens])

    return trees(max_requests=max_requests, max_nodes=10, vocab_size=len(INTERESTING)).map(interesting)


def kinds_for(tree: HostTree) -> st.SearchStrategy[list[tuple[str, GrammarSpec]]]:
    """What the requests of a tree are, most of them native."""
    kinds = st.sampled_from([*["native"] * 4, *KINDS])
    return st.lists(st.tuples(kinds, st.sampled_from(SPECS)), min_size=tree.bs, max_size=tree.bs)


@settings(max_examples=300)
@given(st.data(), toy_trees(), st.booleans(), st.sampled_from([1, 2, 3]))
def test_any_batch_is_walked_as_by_python(
    data: st.DataObject, tree: HostTree, dense: bool, num_threads: int
) -> None:
    kinds = data.draw(kinds_for(tree))
    native, plain = sessions(kinds), sessions(kinds, ReferenceMatcher)
    expected = walked(plain, tree, dense=dense)
    assert walked(native, tree, dense=dense, workers=THREADS[num_threads]) == expected
    for made, other in zip(native, plain, strict=True):
        if made.cursor is not None and other.cursor is not None:
            assert made.cursor.matcher._history == other.cursor.matcher._history  # type: ignore[attr-defined]


@given(toy_trees(1).filter(lambda tree: tree.bs == 1), st.sampled_from(SPECS), st.booleans())
def test_the_arrays_of_a_tree_need_not_be_contiguous(tree: HostTree, spec: GrammarSpec, dense: bool) -> None:
    fields = ("cu_nodes", "draft_tokens", "retrieve_next_token", "retrieve_next_sibling")
    strided = HostTree(*(np.stack([getattr(tree, name)] * 2, axis=1)[:, 0] for name in fields))
    assert not strided.retrieve_next_token.flags.c_contiguous or len(tree.draft_tokens) == 1
    expected = walked([session("native", spec)], tree, dense=dense)
    assert walked([session("native", spec)], strided, dense=dense) == expected


def test_what_native_code_moves_is_walked_by_it() -> None:
    """What the tests above are about: else they would compare Python with itself."""
    kinds = [(kind, GRAMMARS[3]) for kind in KINDS]
    tree = HostTree.from_chains([[0, 0]] * len(kinds))
    rows = MaskRows(np.zeros((2 * len(kinds), 2), np.int32), 2 * len(kinds))
    others = walk_natively(sessions(kinds), tree, rows, None)
    assert [KINDS[number] for number in others] == ["python", "gated", "free", "over"]


def test_batches_of_roots_alone_and_no_batch() -> None:
    kinds = [("native", spec) for spec in SPECS]
    alone = walked(sessions(kinds), HostTree.roots([0] * len(kinds)), workers=THREADS[3])
    assert alone.statuses == [*[LIVE] * 5, PADDING]
    assert "admits no token here" in alone.errors[5]
    assert alone.errors[:5] == [""] * 5
    assert walked([], HostTree.roots([])).statuses == []


def test_a_chain_of_5000_nodes() -> None:
    drafts = [0, 39, 1, 38, 12] * 1000
    tree = HostTree.from_chains([[0, *drafts]] * 2)
    kinds = [("native", GRAMMARS[3])] * 2
    found = walked(sessions(kinds), tree, workers=THREADS[2])
    assert found.errors == ["", ""]
    assert found.statuses == [LIVE] * 10002
    assert len(found.rows) == 10002
    assert len({tuple(row) for row in found.rows.values()}) == 1


def test_a_wide_tree_of_5000_siblings() -> None:
    tokens = np.array([0, *[0, 39, PAD, 1, 38] * 1000])
    tree = HostTree.from_parents(np.array([0, 5001]), tokens, np.array([-1, *[0] * 5000]))
    found = walked([session("native", GRAMMARS[3])], tree)
    assert found.statuses == [LIVE, *[LIVE, LIVE, REJECTED, LIVE, LIVE] * 1000]


def test_stop_tokens_padding_and_foreign_ids_as_drafts() -> None:
    tokens = [0, 0, STOP, OTHER_STOP, -1, TWO_WORDS.vocab_size, 63, 64, 2**40, STOP, 1, -1]
    parents = [-1, 0, 0, 0, -1, 0, 0, 0, 0, 1, 2, -1]
    tree = HostTree.from_parents(np.array([0, 12]), np.array(tokens), np.array(parents))
    found = walked([session("native", GRAMMARS[3])], tree)
    foreign = [REJECTED] * 4
    assert found.statuses == [LIVE, LIVE, ENDED, ENDED, PADDING, *foreign, ENDED, REJECTED, PADDING]
    assert sorted(found.rows) == [0, 1]


def test_dead_ends_below_the_root_and_at_it() -> None:
    tree = HostTree.from_parents(np.array([0, 5]), np.array([0, 0, 1, 39, 1]), np.array([-1, 0, 0, 0, 1]))
    for dense in (False, True):
        below = walked([session("native", SPECS[4])], tree, dense=dense)
        assert below.statuses == [LIVE, ENDED, LIVE, ENDED, REJECTED]
        assert below.errors == [""]
        rows_of_dead = [below.rows.get(node) for node in (1, 3, 4)]
        assert rows_of_dead == ([[-1, -1]] * 3 if dense else [None] * 3)
        at = walked([session("native", GRAMMARS[0]), session("native", SPECS[5])], _twice(tree), dense=dense)
        assert at.statuses[5:] == [PADDING] * 5
        assert at.statuses[0] == LIVE
        assert at.errors[0] == ""
        assert "admits no token here, not even a stop token" in at.errors[1]
        assert [at.rows.get(node) for node in range(5, 10)] == ([[-1, -1]] * 5 if dense else [None] * 5)


def _twice(tree: HostTree) -> HostTree:
    arrays = (tree.draft_tokens, tree.retrieve_next_token, tree.retrieve_next_sibling)
    return HostTree(np.array([0, 5, 10]), *(np.tile(array, 2) for array in arrays))


def test_requests_of_another_vocabulary_are_left_to_python() -> None:
    other = dataclasses.replace(TWO_WORDS)
    foreign = GrammarSession(other, matcher(CalledBack, GRAMMARS[3]))
    ours = session("native", GRAMMARS[3])
    rows = MaskRows(np.zeros((2, 2), np.int32), 2)
    assert walk_natively([ours, foreign], HostTree.roots([0, 0]), rows, None) == [1]


def test_a_matcher_is_left_as_found_whatever_the_tree() -> None:
    made = session("native behind tokens", GRAMMARS[3])
    assert made.cursor is not None
    tokens, parents = np.array([0, 0, 1, 39, 0]), np.array([-1, 0, 1, 0, 3])
    walked([made], HostTree.from_parents(np.array([0, 5]), tokens, parents))
    made.cursor.matcher.rollback(2)
    with pytest.raises(MatcherError):
        made.cursor.matcher.rollback(1)
