"""Histories of sglang's requests: complete whether it has appended the last step's tokens or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specgrammar.protocols.spec import Commit
from specgrammar.trees.tree import HostTree
from specgrammar_sglang.histories import Histories, Row

DEPTH = 8


def request(rid: str, prompt: list[int], output: list[int], max_new_tokens: int | None = None) -> Any:
    params = SimpleNamespace(max_new_tokens=max_new_tokens, temperature=0.7, top_k=5, top_p=0.9, min_p=0.0)
    return SimpleNamespace(rid=rid, origin_input_ids_unpadded=prompt, output_ids=output, sampling_params=params)


def test_what_sglang_has_not_appended_yet_comes_from_the_step_before() -> None:
    histories = Histories()
    req = request("a", [1, 2], [3])
    batch, commits = histories.batch([Row(req, 3, [3])], DEPTH)
    (view,) = batch.requests
    assert (list(view.tokens), view.num_prompt_tokens, commits) == ([1, 2, 3], 2, [])
    histories.drafted(HostTree.from_chains([[3, 4, 9]]))
    batch, commits = histories.batch([Row(req, 5, [4, 5])], DEPTH)  # in flight
    assert list(batch.requests[0].tokens) == [1, 2, 3, 4, 5]
    assert commits == [Commit("a", (4, 5), 2, 1, finished=False)]
    histories.drafted(HostTree.roots([5]))
    req.output_ids += [4, 5]
    batch, commits = histories.batch([Row(req, 5, [4, 5])], DEPTH)  # a step without it came between
    assert list(batch.requests[0].tokens) == [1, 2, 3, 4, 5]
    req.output_ids.append(6)
    batch, commits = histories.batch([Row(req, 6)], DEPTH)
    assert list(batch.requests[0].tokens) == [1, 2, 3, 4, 5, 6]
    assert commits == [Commit("a", (6,), 0, 0, finished=False)]
    assert batch.step == 4


def test_requests_that_leave_have_finished_and_an_id_may_come_again() -> None:
    histories = Histories()
    first, other = request("a", [1, 2], [3]), request("b", [7], [8])
    histories.batch([Row(first, 3), Row(other, 2)], DEPTH)
    histories.drafted(HostTree.roots([3, 8]))
    batch, commits = histories.batch([Row(request("a", [4], [5]), 2), Row(other, 2)], DEPTH)
    assert [list(view.tokens) for view in batch.requests] == [[4, 5], [7, 8]]
    assert commits[0] == Commit("a", (), 0, 0, finished=True)
    assert [commit.request_id for commit in commits] == ["a", "b"]
    assert histories.batch((), DEPTH)[1] == [Commit(rid, (), 0, 0, finished=True) for rid in "ab"]


def test_a_request_that_was_preempted_begins_anew() -> None:
    histories = Histories()
    req = request("a", [1], [2, 3, 4])
    histories.batch([Row(req, 4)], DEPTH)
    del req.output_ids[1:]
    batch, commits = histories.batch([Row(req, 2)], DEPTH)
    assert list(batch.requests[0].tokens) == [1, 2]
    assert commits == [Commit("a", (), 0, 0, finished=True)]


def test_drafts_are_no_longer_than_what_may_be_written() -> None:
    histories = Histories()
    for limit, expected in ((None, 8), (20, 8), (5, 2), (3, 0), (1, 0)):
        req = request("a", [1, 2], [3, 4], limit)
        batch, _ = histories.batch([Row(req, 4)], DEPTH)
        assert batch.requests[0].max_draft_tokens == expected


def test_sampling_parameters_are_translated() -> None:
    histories = Histories()
    req = request("a", [1], [2])
    (view,) = histories.batch([Row(req, 2)], DEPTH)[0].requests
    assert (view.sampling.temperature, view.sampling.top_k, view.sampling.top_p) == (0.7, 5, 0.9)
    req.sampling_params.top_k = 1 << 30
    (view,) = histories.batch([Row(req, 2)], DEPTH)[0].requests
    assert view.sampling.top_k == 0
    req.sampling_params.top_k = 1
    (view,) = histories.batch([Row(req, 2)], DEPTH)[0].requests
    assert view.sampling.greedy
