"""Memory: bounded by the requests in flight and the capacity, however much was written."""

from __future__ import annotations

import random
import sys
from array import array

import numpy as np

from specgrammar.spec.ngram import NgramAlgorithm, NgramProducer
from tests.spec.drafting import batch, commit, view


def deep_size(root: object) -> int:
    """Bytes of all objects that are reachable from one, by attributes and containers."""
    seen: set[int] = set()
    todo, size = [root], 0
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            todo += item
        elif not isinstance(item, str | bytes | int | float | array | np.ndarray):
            todo += list(getattr(item, "__dict__", {}).values())
            todo += [getattr(item, name) for name in getattr(item, "__slots__", ()) if hasattr(item, name)]
    return size


def serve(producer: NgramProducer, request_id: str, words: random.Random, num_tokens: int) -> None:
    """One request from prompt to end; its words are partly its own, so that n-grams come and go."""
    vocabulary = [words.randrange(10_000) for _ in range(8)] + list(range(20))
    tokens = words.choices(vocabulary, k=10)
    for _ in range(num_tokens // 5):
        producer.propose(batch(view(tokens, request_id, num_prompt_tokens=10)))
        new = words.choices(vocabulary, k=5)
        tokens = tokens + new
        producer.observe([commit(new, request_id, finished=len(tokens) >= 10 + num_tokens)])


def test_memory_is_flat_over_many_requests() -> None:
    producer, words = NgramProducer(NgramAlgorithm(capacity=2_000)), random.Random(1)
    sizes = []
    for request in range(500):
        serve(producer, f"request {request}", words, num_tokens=20)
        if request in (199, 349, 499):
            sizes.append(deep_size(producer))
    assert len(producer._histories) == 0
    assert producer._shared is not None
    assert len(producer._shared) == 2_000
    # A dict that shrinks and grows keeps its table for a while; nothing else may differ.
    assert max(sizes) < 1.15 * min(sizes), sizes
    assert max(sizes) < 2_000 * 800, "per token of capacity, table included"


def test_without_sharing_a_finished_request_leaves_nothing() -> None:
    producer, words = NgramProducer(NgramAlgorithm(shared=False)), random.Random(2)
    serve(producer, "warm", words, num_tokens=20)
    empty = deep_size(producer)
    for request in range(50):
        serve(producer, f"request {request}", words, num_tokens=100)
    assert deep_size(producer) == empty


def test_one_long_request_costs_memory_for_its_tokens_alone() -> None:
    producer, words = NgramProducer(NgramAlgorithm(capacity=1_000)), random.Random(3)
    text = words.choices(range(300), k=10_000)
    producer.propose(batch(view(text[:5_000], num_prompt_tokens=100)))
    half = deep_size(producer)
    producer.propose(batch(view(text, num_prompt_tokens=100)))
    assert deep_size(producer) < 2.5 * half
    assert deep_size(producer) < 10_000 * 1_000
    producer.observe([commit([], finished=True)])
    assert deep_size(producer) < 1_000 * 1_000
