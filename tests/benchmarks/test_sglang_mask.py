"""The benchmark of sglang's mask function: every column on a small shape, with equal rows."""

from __future__ import annotations

import pytest

from benchmarks.documents import NESTED, load_documents
from benchmarks.grammars import Grammars
from benchmarks.scenes import Corpus
from benchmarks.sglang_mask import Cell, measure, summarise
from benchmarks.vocabularies import load_vocabulary
from tests.sglang_adapter.pieces import load

pytestmark = pytest.mark.model  # SmolLM2's vocabulary


def test_every_column_makes_the_same_rows() -> None:
    load()
    vocabulary = load_vocabulary("smollm2")
    corpus = Corpus(load_documents(vocabulary, len(NESTED) + 1), vocabulary.stop_ids[0])
    cell = measure(corpus.make_scene("ngram", 2, 4), Grammars(vocabulary), budget=0.0)
    assert (cell.bs, cell.num_nodes) == (2, 4)
    assert 2 <= cell.num_live <= 8
    assert len(cell.seconds) == 6


def test_the_summary_is_the_worst_kind_of_trees() -> None:
    def cell(kind: str, hook: float) -> Cell:
        seconds = {"sglang xgrammar": 8.0, "sglang xgrammar, our grammar": 6.0, "hook xgrammar": hook}
        return Cell(
            kind, 1, 1, 1, seconds | {name.replace("xgrammar", "llguidance"): s for name, s in seconds.items()}
        )

    summary = summarise([cell("ngram", 1.0), cell("eagle", 2.0)])
    assert summary["sglang xgrammar_over_hook"] == 4.0
    assert summary["sglang llguidance, our grammar_over_hook"] == 3.0
