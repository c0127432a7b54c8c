"""Which steps' times say what a step costs, and for how many requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, count
from unittest.mock import patch

import numpy as np
import pytest
import torch

from specgrammar.protocols.spec import DecodeBatch, ProducerContext
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.eagle.budget import BranchBudget
from specgrammar.spec.eagle.producer import EagleProducer
from specgrammar.spec.merged.budget import NodeBudget
from specgrammar.spec.step_costs import StepTimer
from specgrammar.testing.late_target import LateTarget
from specgrammar.testing.toys import VOCABULARY
from tests.spec.toy_eagle import toy_eagle


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    """Step n begins at 0 + 1 + ... + n, so that it takes n + 1 seconds."""
    times = accumulate(count())
    with patch("specgrammar.spec.step_costs.time.perf_counter", lambda: float(next(times))):
        yield


def test_a_prompt_is_not_counted_and_a_request_that_leaves_takes_no_time() -> None:
    timer = StepTimer()
    batches = [["a", "b"], ["a", "b"], ["b", "a"], ["a"], ["a"], ["a", "c"], ["c", "a"], ["c"]]
    assert [timer.begin(batch) for batch in batches] == [None, None, 2.0, 3.0, 4.0, None, None, 7.0]


def test_a_time_is_that_of_the_batch_it_was_measured_with() -> None:
    budget = NodeBudget()
    for batch in (["a", "b"], ["a", "b"], ["a"], ["a"]):
        budget.begin(batch)
    assert {bs: costs.curve(0) for bs, costs in budget._costs.items()} == {2: [2.0], 1: [3.0]}


def test_a_step_without_drafts_is_not_read() -> None:
    budget = BranchBudget(3, InlineDevice())
    for _ in range(3):
        budget.begin(["a"])
        # What a read would wait for.
        budget._steps[-1].kept = torch.zeros(2, device="meta")
    assert not budget._costs


def test_batches_of_nobody_do_no_harm() -> None:
    algorithm = replace(toy_eagle(topk=2, num_steps=2, num_draft_tokens=4), budget="auto")
    device = InlineDevice()
    producer = algorithm.make_producer(ProducerContext(VOCABULARY, 4, device, target=LateTarget(device)))
    assert isinstance(producer, EagleProducer)
    assert producer._budget is not None
    producer._budget._num_requests = 1.0  # as behind a step of somebody
    for step in range(30):
        assert np.array_equal(producer.propose(DecodeBatch(step, ())).cu_nodes, [0])
