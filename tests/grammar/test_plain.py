"""What backends in plain Python are built from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, GrammarCompileError, MatcherError
from specgrammar.grammar.plain import choices_of, own_grammar, write_row
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec, Vocabulary

FACTS = BackendFacts(None, True, frozenset(), frozenset(), kinds=frozenset({"choice"}))
VOCABULARY = Vocabulary(tuple(b"%d" % i for i in range(70)), stop_ids=(69,))


@given(st.lists(st.integers(0, 69), min_size=1))
def test_a_row_has_the_bits_of_its_ids_and_no_other(legal: list[int]) -> None:
    bitmask = np.full((3, VOCABULARY.num_words), 7, np.int32)
    write_row(bitmask, 1, legal, VOCABULARY)
    assert [i for i in range(96) if bitmask[1, i // 32] >> (i % 32) & 1] == sorted(set(legal))
    assert (bitmask[[0, 2]] == 7).all()


def test_a_row_without_ids_is_a_dead_end() -> None:
    bitmask = np.full((1, VOCABULARY.num_words), 7, np.int32)
    with pytest.raises(DeadEndError, match="admits no token"):
        write_row(bitmask, 0, [], VOCABULARY)
    assert not bitmask.any()


@pytest.mark.parametrize(
    ("bitmask", "row", "reason"),
    [
        (np.zeros((2, 3), np.int64), 0, "int64"),
        (np.zeros((2, 2), np.int32), 0, r"expected int32\[rows, 3\]"),
        (np.zeros((2, 6), np.int32)[:, ::2], 0, "C-contiguous"),
        (np.zeros((2, 3), np.int32), 2, "row 2 is outside"),
        (np.zeros((2, 3), np.int32), -1, "row -1 is outside"),
    ],
)
def test_what_is_not_to_contract_is_refused(bitmask: np.ndarray, row: int, reason: str) -> None:
    with pytest.raises(MatcherError, match=reason):
        write_row(bitmask, row, [1], VOCABULARY)


def test_the_strings_of_a_choice_each_once() -> None:
    assert choices_of(GrammarSpec.choice(["a", "é", "a", ""]), FACTS) == ["a", "é", ""]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (GrammarSpec.regex("a"), "regex: this backend compiles choice only"),
        (GrammarSpec("choice", "{}"), "expected a JSON array"),
        (GrammarSpec("choice", "[1]"), "expected a JSON array of at least one string"),
        (GrammarSpec("choice", "[]"), "at least one string"),
        (GrammarSpec("choice", '["\\ud800"]'), "lone surrogate"),
        (GrammarSpec("choice", "nonsense"), "choice"),
    ],
)
def test_what_is_no_choice_is_refused(spec: GrammarSpec, reason: str) -> None:
    with pytest.raises(GrammarCompileError, match=reason):
        choices_of(spec, FACTS)


def test_a_grammar_of_another_backend_is_refused() -> None:
    assert own_grammar("mine", str) == "mine"
    with pytest.raises(MatcherError, match=r"compiled by another backend \(int\); a str is expected"):
        own_grammar(1, str)
