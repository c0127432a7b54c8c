"""The mask benchmark on small shapes: its scenes, its floor, and every column through to the report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from benchmarks.columns import Eager, Raw, Rings, live_walk
from benchmarks.documents import NESTED, load_documents
from benchmarks.grammars import Grammars
from benchmarks.lazy_column import Lazy
from benchmarks.mask_build import Bench, run
from benchmarks.mask_policy import mask_parts, measure, stepper
from benchmarks.mask_report import print_report, summarise, write_json
from benchmarks.scenes import KINDS, Corpus
from benchmarks.timing import interleaved_medians
from benchmarks.vocabularies import load_vocabulary
from specgrammar.runtime.lazy import LazyMasking
from specgrammar.runtime.masking import EagerMasking
from specgrammar.trees.tree import HostTree
from specgrammar.trees.validate import validate_tree

pytestmark = pytest.mark.model  # SmolLM2's vocabulary


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(load_vocabulary("smollm2"))


@pytest.fixture(scope="module")
def corpus(grammars: Grammars) -> Corpus:
    return Corpus(load_documents(grammars.vocabulary, len(NESTED) + 1), grammars.vocabulary.stop_ids[0])


def test_documents_spell_values_that_satisfy_their_schemas(corpus: Corpus, grammars: Grammars) -> None:
    assert len({document.schema for document in corpus.documents}) == len(NESTED) + 1
    for document in corpus.documents:
        value = json.loads(grammars.vocabulary.text(document.tokens))
        jsonschema.validate(value, json.loads(document.schema))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_nodes", [4, 16, 64])
def test_scenes_are_full_valid_trees_and_repeat(corpus: Corpus, kind: str, num_nodes: int) -> None:
    scene, again = (corpus.make_scene(kind, 9, num_nodes, seed=3) for _ in range(2))
    validate_tree(scene.tree)
    assert np.diff(scene.tree.cu_nodes).tolist() == [num_nodes] * 9
    assert scene.tree.draft_tokens.tolist() == again.tree.draft_tokens.tolist()
    roots = scene.tree.draft_tokens[scene.tree.cu_nodes[:-1]].tolist()
    assert roots == [request.committed[-1] for request in scene.requests]
    parents = scene.tree.parents().reshape(9, num_nodes)
    if kind == "chain":
        assert (parents == np.arange(num_nodes) - 1).all()
    siblings = list(
        zip(np.arange(9 * num_nodes) // num_nodes, parents.ravel(), scene.tree.draft_tokens, strict=True)
    )
    assert len(set(siblings)) == len(siblings)


def test_the_recorded_walk_visits_the_live_nodes_and_comes_back() -> None:
    #        0 ── 1 ── 2      live: all but 3 and its child 4
    #        ├─── 3 ── 4
    #        └─── 5 ── 6
    parents = np.array([-1, 0, 1, 0, 3, 0, 5])
    tree = HostTree.from_parents(np.array([0, 7]), np.arange(10, 17), parents)
    live = np.array([True, True, True, False, False, True, True])
    assert live_walk(tree, 0, live) == [
        ("fill", 0),
        *[("accept", 11), ("fill", 0), ("accept", 12), ("fill", 0), ("rollback", 2)],
        *[("accept", 15), ("fill", 0), ("accept", 16), ("fill", 0), ("rollback", 2)],
    ]


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_the_raw_calls_fill_the_rows_of_our_mask(corpus: Corpus, grammars: Grammars, backend: str) -> None:
    scene, rings = corpus.make_scene("eagle", 6, 16), Rings()
    raw = Raw(backend, rings).prepare(scene, grammars)
    ours = Eager(backend, rings).builder(scene, grammars)
    for _ in range(2):  # it leaves the matchers where they were
        rows = raw()
        mask = ours()
        # Ours may stand in another order than the walk's; theirs are in that of the walk.
        assert sorted(map(bytes, rows)) == sorted(map(bytes, mask.bitmask))
        mask.discard()


def test_medians_in_turns() -> None:
    calls: list[str] = []

    def reported(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    medians = interleaved_medians(
        {"a": lambda: reported("a", 1.0), "b": lambda: reported("b", 2.0)}, budget=0.0, min_rounds=2
    )
    assert medians == {"a": 1.0, "b": 2.0}
    assert calls == ["b", "a", "a", "b", "b", "a"]


def test_the_whole_run_on_a_small_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench.with_peers()
    try:
        cells = [asdict(cell) for cell in run(["smollm2"], [(1, 64), (9, 4)], bench, len(NESTED), budget=0.0)]
    finally:
        if bench.vllm is not None:
            bench.vllm.close()
    assert len(cells) == 2 * len(KINDS)
    for cell in cells:
        assert 0 < cell["legal_share"] <= 1
        assert 0 < cell["uploaded_bytes"] <= cell["dense_bytes"] * 1.01
        assert {"ours xgrammar", "ours llguidance", "raw xgrammar", "raw llguidance"} <= cell["seconds"].keys()
        assert ("llguidance executor x1" in cell["seconds"]) == (cell["kind"] == "chain")
    summary = summarise(cells)
    assert (summary["eager_vs_sglang_1x64"] is None) == ("sglang" in bench.missing)
    assert summary["lazy_vs_sglang_128x16"] is None
    print_report(cells, summary, bench.missing, {})
    write_json(tmp_path / "out.json", cells, summary, bench.missing, {})
    assert json.loads((tmp_path / "out.json").read_text())["summary"].keys() == summary.keys()
    printed = capsys.readouterr().out
    assert "9x4" in printed
    assert "eager_over_raw_max" in printed


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_lazy_column_commits_the_document(
    corpus: Corpus, grammars: Grammars, kind: str, backend: str
) -> None:
    """Whatever the target would rather have written, the path is the document's, as far as the tree has it."""
    scene = corpus.make_scene(kind, 5, 16, seed=1)
    seen: list[tuple[int, ...]] = []
    step = Lazy(backend).prepare(scene, grammars, seen.append, leaves_with=0.0)
    assert step() > 0
    for request, committed in zip(scene.requests, seen, strict=True):
        text = (*request.document.tokens[request.position :], grammars.vocabulary.stop_ids[-1])
        assert len(committed) > 0
        assert committed[:-1] == text[: len(committed) - 1]


def test_the_policy_benchmark_leaves_sessions_as_it_found_them(corpus: Corpus, grammars: Grammars) -> None:
    """So that every policy measures the same step again and again."""
    scene, parts = corpus.make_scene("ngram", 3, 16), mask_parts(grammars)
    step = stepper(scene, grammars, 0.0)
    for policy in (EagerMasking(parts), LazyMasking(parts), EagerMasking(parts), LazyMasking(parts)):
        assert step(policy) > 0
    cell = measure(scene, grammars, 0.0)
    assert min(cell.eager_ms, cell.lazy_ms, cell.auto_ms) > 0
    assert cell.said.startswith(("auto: eager below 64 nodes", "auto: lazy below 64 nodes"))
