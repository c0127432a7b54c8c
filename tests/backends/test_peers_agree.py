"""Live rows are the peers', bit for bit: over 500 random trees in real documents, and one compiled grammar."""

from __future__ import annotations

import pytest

from benchmarks.agreement import disagreements, disagreements_with_vllm
from benchmarks.documents import NESTED, load_documents
from benchmarks.grammars import Grammars
from benchmarks.peers import load_sglang
from benchmarks.scenes import KINDS, Corpus
from benchmarks.vllm_peer import PYTHON_VARIABLE, Vllm
from benchmarks.vocabularies import load_vocabulary

pytestmark = pytest.mark.model  # SmolLM2's vocabulary


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(load_vocabulary("smollm2"))


@pytest.fixture(scope="module")
def corpus(grammars: Grammars) -> Corpus:
    vocabulary = grammars.vocabulary
    return Corpus(load_documents(vocabulary, num_schemas=len(NESTED) + 2), vocabulary.stop_ids[0])


def test_sglang_and_xgrammar_fill_the_same_live_rows(grammars: Grammars, corpus: Corpus) -> None:
    try:
        load_sglang()
    except RuntimeError as error:
        pytest.skip(f"needs sglang's source ({error})")
    scenes = [corpus.make_scene(kind, 60, num_nodes) for kind in KINDS for num_nodes in (4, 16, 33)]
    assert sum(scene.bs for scene in scenes) >= 500
    num_rows, found = disagreements(scenes, grammars)
    assert num_rows > 2000
    assert found == []


def test_vllm_fills_the_same_live_rows(grammars: Grammars, corpus: Corpus) -> None:
    python = Vllm.find()
    if python is None:
        pytest.skip(f"needs vLLM: `make bench-peers`, or set {PYTHON_VARIABLE} to its interpreter")
    vllm = Vllm(python)
    scenes = [corpus.make_scene("chain", 130, num_nodes) for num_nodes in (4, 9, 16, 33)]
    try:
        num_rows, found = disagreements_with_vllm(scenes, grammars, vllm)
    finally:
        vllm.close()
    assert num_rows > 2000
    assert found == []
