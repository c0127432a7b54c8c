"""The proposer over a batch whose rows move, as vLLM's runner moves them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.errors import ConfigError, TreeError
from specgrammar.protocols.spec import ProducerContext
from specgrammar.runtime.device import device_for
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree, SampledProposals
from specgrammar_vllm.flatten import chains_of
from specgrammar_vllm.histories import Histories
from specgrammar_vllm.options import Options
from specgrammar_vllm.proposer import ChainProducer

CONTEXT = ProducerContext(VOCABULARY, 8, device_for("cpu"))
LENGTH = 64


def new_producer(num_tokens: int = 3, **options: Any) -> ChainProducer:
    return ChainProducer(Options(**options), CONTEXT, num_tokens, LENGTH)


def propose(producer: ChainProducer, rows: list[tuple[list[int], int]]) -> list[list[int]]:
    """Ask as the runner does.

    Args:
        producer: is asked.
        rows: for each row all tokens, and how many of them this step committed.
    """
    token_ids = np.full((8, LENGTH), 99, dtype=np.int32)
    lengths = np.zeros(8, dtype=np.int32)
    for row, (tokens, _) in enumerate(rows):
        token_ids[row, : len(tokens)] = tokens
        lengths[row] = len(tokens)
    sampled = [tokens[len(tokens) - num_new :] for tokens, num_new in rows]
    return producer.propose(sampled, lengths, token_ids, slot_mappings=None)


def test_drafts_continue_what_was_there_before() -> None:
    drafts = propose(new_producer(), [([1, 2, 3, 4, 5, 1, 2], 1), ([7, 8], 1), ([1, 2, 1], 0)])
    assert drafts == [[3, 4, 5], [], []]


def test_no_draft_goes_over_the_longest_request() -> None:
    repeated = [1, 2, 3, 4] * 16
    drafts = propose(new_producer(), [(repeated[:62], 1), (repeated[:64], 1)])
    assert [len(chain) for chain in drafts] == [2, 0]


def test_a_request_that_has_finished_is_forgotten_and_its_text_is_shared() -> None:
    producer = new_producer()
    histories: Any = producer._producer._histories  # ngram's, to see that it forgets
    propose(producer, [([9, 1, 2, 3], 1), ([7, 8], 1)])
    propose(producer, [([9, 1, 2, 3, 4, 5, 6], 3), ([7, 8, 8], 1)])
    assert len(histories) == 2
    assert propose(producer, [([7, 8, 8, 3, 4], 2)]) == [[5, 6]]
    assert len(histories) == 1
    propose(producer, [])
    assert len(histories) == 0


@given(st.integers(0, 10**6))
def test_rows_are_followed_wherever_they_move(seed: int) -> None:
    """Requests come, go, are preempted, and change places; each keeps its id while it is in the batch."""
    rng = random.Random(seed)
    histories = Histories()
    requests: list[tuple[int, list[int]]] = []
    ids: dict[int, str] = {}
    for step in range(12):
        requests = [request for request in requests if rng.random() < 0.85]
        if rng.random() < 0.5 and len(requests) < 6:
            requests.append((step, [rng.randrange(50) for _ in range(rng.randint(1, 5))]))
        rng.shuffle(requests)
        batch = [tokens for _, tokens in requests]
        counts = [rng.randint(1, 3) for _ in batch]
        for tokens, count in zip(batch, counts, strict=True):
            tokens.extend(rng.randrange(50) for _ in range(count))
        token_ids = np.zeros((8, LENGTH), dtype=np.int32)
        for row, tokens in enumerate(batch):
            token_ids[row, : len(tokens)] = tokens
        sampled = [tokens[-count:] for tokens, count in zip(batch, counts, strict=True)]
        histories.update(sampled, [len(tokens) for tokens in batch], token_ids)
        assert [history.tokens for history in histories.rows.values()] == batch
        found = {key: histories.rows[row].request_id for row, (key, _) in enumerate(requests)}
        if len({tuple(tokens[:-count]) for tokens, count in zip(batch, counts, strict=True)}) == len(batch):
            assert all(ids.get(key, name) == name for key, name in found.items())
        assert len(set(found.values())) == len(batch)
        ids = found


def tree_of(parents: list[int], tokens: list[int], score: list[float] | None) -> DraftTree:
    host = HostTree.from_parents(np.array([0, len(tokens)]), np.array(tokens), np.array(parents))
    return DraftTree.from_host(1, host, score=None if score is None else np.array(score, dtype=np.float32))


@pytest.mark.parametrize(
    ("parents", "score", "chain"),
    [
        ([-1, 0, 1, 0, 3], [1, 0.6, 0.1, 0.4, 0.9], [3, 4]),  # 0.66 against 0.76 expected tokens
        ([-1, 0, 1, 0, 3], [1, 0.6, 0.3, 0.4, 0.5], [1, 2]),  # 0.78 against 0.6
        ([-1, 0, 1, 0, 3], None, [1, 2]),
        ([-1, 0, 1, 0, 3], [1, float("nan"), 0.1, 0.9, 0.1], [1, 2]),
        ([-1, 0, 0, 2, 3], None, [2, 3, 4]),
        ([-1], None, []),
    ],
)
def test_the_most_probable_chain(parents: list[int], score: list[float] | None, chain: list[int]) -> None:
    assert list(chains_of(tree_of(parents, list(range(len(parents))), score))) == [chain]


def test_no_drafts_leave_all_of_them_to_the_grammar() -> None:
    producer = new_producer(algorithm="none")
    assert propose(producer, [([1, 2, 3], 1), ([4], 1)]) == [[], []]


def test_what_was_accepted_of_the_proposal_is_said_apart_from_what_others_added() -> None:
    producer = new_producer(algorithm="ngram")
    seen: list[Any] = []
    producer._producer.observe = seen.extend
    tokens = [1, 2, 3, 9, 1, 2]
    (chain,) = propose(producer, [(tokens, 1)])
    assert chain[:2] == [3, 9]
    propose(producer, [([*tokens, 3, 7, 8, 5], 4)])  # 7 and 8 were the scheduler's
    assert [(commit.num_draft_tokens, commit.num_accepted) for commit in seen] == [(len(chain), 1)]


def test_sampled_proposals_are_no_chain() -> None:
    host = HostTree.roots([1])
    sampled = SampledProposals(np.array([-1]), None)  # type: ignore[arg-type]  # not looked at
    with pytest.raises(TreeError, match="not of sampled ones"):
        list(chains_of(DraftTree.from_host(1, host, sampled=sampled)))


def test_trees_of_an_algorithm_become_chains() -> None:
    producer = new_producer(algorithm="ngram", algorithm_options={"num_draft_tokens": 6, "breadth": 3})
    tokens = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 9, 1, 2]
    assert propose(producer, [(tokens, 1)]) == [[4, 9, 1]]


def test_what_cannot_work_in_vllm_is_refused() -> None:
    with pytest.raises(ConfigError, match="no option 'deep'"):
        new_producer(algorithm="ngram", algorithm_options={"deep": 1})
    with pytest.raises(ConfigError, match="this engine loads none"):
        new_producer(algorithm="chain", algorithm_options={"drafter": "m"})
    with pytest.raises(ConfigError, match=r"needs the grammar.* the scheduler adds itself"):
        new_producer(algorithm="forced")
    assert not ChainProducer.supports_trees
    assert not ChainProducer.supports_resample
