"""The n-gram benchmark on a small corpus, through to the table; sglang's corpus where it can be built."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ngram_host
from benchmarks.ngram_host import PHASES, Ours, print_table, run
from benchmarks.ngram_texts import MOST_PER_STEP, NUM_NODES, Stream, Workload, accepted_lengths
from benchmarks.sglang_corpus import SglangNgram, SglangRequest

pytestmark = pytest.mark.model  # SmolLM2's vocabulary


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload.load("smollm2", num_warm=3_000, num_unwritten=12)


def sglang(match_type: str = "BFS") -> SglangNgram:
    try:
        return SglangNgram(match_type, num_nodes=8, trie_depth=6, breadth=4, capacity=1_000)
    except RuntimeError as error:
        pytest.skip(str(error))


def test_streams_are_long_enough_and_nobody_wrote_them_before(workload: Workload) -> None:
    assert workload.num_warm >= 3_000
    streams = workload.streams(4, num_steps=3)
    assert len({stream.request_id for stream in streams}) == 4
    for stream in streams:
        assert len(stream.output) >= stream.position + 4 * MOST_PER_STEP + NUM_NODES
        assert len(stream.rest) == NUM_NODES
        assert tuple(stream.output[:30]) not in {text[:30] for text in workload.warm}


def test_the_accept_length_is_the_path_that_the_document_takes_and_a_bonus_token() -> None:
    #  0 ── 1:5 ── 3:6     a tree of 5 nodes; node 4 hangs below node 2
    #  └─── 2:7 ── 4:8
    tokens = np.array([[1, 5, 7, 6, 8]] * 3)
    next_token = np.array([[1, 3, 4, -1, -1]] * 3)
    next_sibling = np.array([[-1, 2, -1, -1, -1]] * 3)
    streams = [Stream(str(i), [1], rest, 0) for i, rest in enumerate(([7, 8, 9], [5, 8], [9, 5]))]
    assert accepted_lengths(streams, tokens, next_token, next_sibling) == [3, 2, 1]


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_sglangs_worker_drafts_what_it_has_inserted(match_type: str) -> None:
    corpus = sglang(match_type)
    corpus.warm([[1, 2, 3, 4, 5]])
    requests = [SglangRequest("a", [9], [1, 2]), SglangRequest("b", [9], [7, 8])]
    drafts, mask = corpus.look_up(requests)
    next_token, _ = corpus.links(mask, 2)
    assert drafts.reshape(2, 8)[:, 0].tolist() == [2, 8]
    assert drafts.reshape(2, 8)[0, 1:4].tolist() == [3, 4, 5]
    assert next_token[0, :3].tolist() == [1, 2, 3]
    requests[1].output_ids.extend([30, 31])
    corpus.insert(requests)
    corpus.wait()
    drafts, _ = corpus.look_up([SglangRequest("c", [9], [8, 30])])
    assert drafts[1] == 31


def test_the_whole_run_on_a_small_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = run("smollm2", 2_000, (1, 3), num_steps=3)
    assert {(cell.contender, cell.bs) for cell in cells} >= {("ours", 1), ("ours", 3)}
    for cell in cells:
        assert cell.seconds.keys() == {*PHASES, "sum"}
        assert min(cell.seconds.values()) > 0
        assert 1 <= cell.mean_accept_length <= NUM_NODES
    print_table(cells)
    assert "accept length" in capsys.readouterr().out
    monkeypatch.setattr(ngram_host, "run", lambda *_args, **_options: cells)
    assert ngram_host.main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert len(json.loads((tmp_path / "out.json").read_text())["cells"]) == len(cells)


def test_without_a_compiler_ours_is_measured_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(ngram_host, "Sglang", refuse)
    cells = run("smollm2", 1_000, (1,), num_steps=1)
    assert [cell.contender for cell in cells] == ["ours"]
    assert "without sglang: no compiler" in capsys.readouterr().err


def test_ours_learns_the_warm_texts(workload: Workload) -> None:
    ours = Ours(workload)
    text = workload.warm[0]
    stream = Stream("probe", list(text[:1]), list(text[1:]), 8)
    ours.join([stream])
    new = stream.output[8:10]
    stream.position = 10
    assert ours.step([stream], [new]).accepted[0] > 1
