"""What every algorithm keeps, whatever it drafts from: `protocols.spec.TreeProducer`, clause by clause."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.protocols.spec import (
    Commit,
    DecodeBatch,
    Proposal,
    SpecAlgorithm,
    Topology,
    TreeProducer,
    supports_grammar_overlap,
)
from specgrammar.registry import ALGORITHMS, create
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.spec.sampling import SamplingParams
from specgrammar.trees.tree import DraftTree
from specgrammar.trees.validate import validate_tree
from tests.spec.drafting import VOCAB_SIZE, MarkovDrafter, arrays, batch, commit, context, host, paths, view
from tests.spec.toy_eagle import toy_eagle

MAKERS: dict[str, Callable[[], SpecAlgorithm]] = {
    "none": NoSpeculation,
    "ngram": NgramAlgorithm,
    "ngram, wide": lambda: NgramAlgorithm(num_draft_tokens=12, breadth=8, depth=3, capacity=10),
    "ngram, narrow": lambda: NgramAlgorithm(num_draft_tokens=5, breadth=1, depth=9, shared=False),
    "chain": ChainAlgorithm,
    "chain, short": lambda: ChainAlgorithm(num_draft_tokens=1, min_match=2),
    "chain, model": lambda: ChainAlgorithm(drafter="markov"),
    "eagle": lambda: toy_eagle(topk=3, num_steps=3, num_draft_tokens=9),
    "eagle, chain": lambda: toy_eagle(topk=1, num_steps=4, num_draft_tokens=5),
    "eagle, cut chain": lambda: toy_eagle(topk=1, num_steps=4, num_draft_tokens=3),
    "chain, sampled": lambda: ChainAlgorithm(drafter="markov", draft_sampling="sampled", num_draft_tokens=3),
}
algorithms = pytest.mark.parametrize("name", MAKERS)


def check_contract(tree: DraftTree, requests: DecodeBatch, topology: Topology, proposal: Proposal) -> None:
    forest, num_nodes = host(tree), tree.num_nodes
    assert tree.step == requests.step
    assert tree.bs == len(requests)
    validate_tree(forest, [request.request_id for request in requests.requests], VOCAB_SIZE)
    assert tree.cu_nodes.tolist() == forest.cu_nodes.tolist()
    for index, request in enumerate(requests.requests):
        root = int(tree.cu_nodes[index])
        assert forest.draft_tokens[root] == request.tokens[-1]
        found = paths(tree, index)
        assert len(set(found)) == len(found), "siblings are distinct"
        assert len(found) <= topology.max_nodes
        assert max(map(len, found)) <= min(topology.max_depth, request.max_draft_tokens)
        if topology.kind == "chain":
            assert (forest.retrieve_next_sibling[root : root + len(found)] == -1).all()
    if tree.score is not None:
        assert tree.score.dtype == np.float32
        assert tree.score.shape == (num_nodes,)
        assert ((tree.score > 0) & (tree.score <= 1)).all()
    if tree.source is not None:
        assert tree.source.dtype == np.int16
        assert tree.source.shape == (num_nodes,)
        assert ((tree.source >= 0) & (tree.source < len(tree.sources))).all()
    if proposal is Proposal.POINT:
        assert tree.sampled is None
    if tree.sampled is not None:
        assert tree.sampled.row_of_node.dtype == np.int64
        assert tree.sampled.row_of_node.shape == (num_nodes,)
        assert tree.sampled.row_of_node.max() < len(tree.sampled.q)
        assert (tree.sampled.row_of_node[tree.cu_nodes[:-1]] == -1).all()


tokens = st.integers(0, 3)
"""Few different ones, so that histories repeat themselves."""


@dataclass
class Request:
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[DecodeBatch, list[Commit]]]:
    """What an engine tells a producer: requests join, sit out, stop, and come back under a used id.

    Reports of commits may be told before the next proposal (as they are here), with it, or never.
    """
    running: dict[str, Request] = {}
    steps = []
    for step in range(draw(st.integers(1, 12))):
        for request_id in draw(st.lists(st.sampled_from("abc"), unique=True)):
            if request_id not in running:
                temperature = draw(st.sampled_from([0.0, 1.0]))
                prompt = draw(st.lists(tokens, min_size=1, max_size=8))
                running[request_id] = Request(prompt, SamplingParams(temperature=temperature))
        chosen = draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else []
        views, commits = [], []
        for request_id in chosen:
            request = running[request_id]
            views.append(
                view(
                    [*request.prompt, *request.output],
                    request_id,
                    num_prompt_tokens=len(request.prompt),
                    max_draft_tokens=draw(st.integers(0, 9)),
                    sampling=request.sampling,
                )
            )
            new, finished = draw(st.lists(tokens, max_size=5)), draw(st.booleans())
            request.output += new
            commits.append(commit(new, request_id, finished=finished))
            if finished:
                del running[request_id]
        steps.append((batch(*views, step=step), commits))
    return steps


def play(
    producer: TreeProducer, steps: list[tuple[DecodeBatch, list[Commit]]], delay: int | None = 0
) -> Iterator[DraftTree]:
    """Propose step by step; commits are observed `delay` proposals later than they might be, None: never."""
    told = 0
    for index, (requests, _) in enumerate(steps):
        while delay is not None and told < index - delay:
            producer.observe(steps[told][1])
            told += 1
        yield producer.propose(requests)


@algorithms
@settings(max_examples=50)
@given(steps=schedules(), delay=st.sampled_from([0, 1, None]))
def test_every_proposal_keeps_the_contract(
    name: str, steps: list[tuple[DecodeBatch, list[Commit]]], delay: int | None
) -> None:
    algorithm = MAKERS[name]()
    producer = algorithm.make_producer(context(MarkovDrafter()))
    for tree, (requests, _) in zip(play(producer, steps, delay), steps, strict=True):
        check_contract(tree, requests, algorithm.topology, algorithm.proposal)


@algorithms
@settings(max_examples=20)
@given(steps=schedules())
def test_invariant_13_replicas_propose_alike(name: str, steps: list[tuple[DecodeBatch, list[Commit]]]) -> None:
    one, other = (MAKERS[name]().make_producer(context(MarkovDrafter())) for _ in range(2))
    for left, right in zip(play(one, steps), play(other, steps), strict=True):
        assert arrays(left) == arrays(right)


def test_invariant_13_hash_randomisation_changes_nothing() -> None:
    program = """
from specgrammar.protocols.spec import Commit, DecodeBatch, RequestView
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.sampling import SamplingParams
producer = NgramAlgorithm(num_draft_tokens=12).make_producer(None)
text = [(i * i) % 7 for i in range(60)]
for i in range(10, 60):
    views = [RequestView(name, text[:i], 5, 100, SamplingParams()) for name in "xy"]
    tree = producer.propose(DecodeBatch(i, tuple(views)))
    print(tree.host.draft_tokens, tree.host.retrieve_next_token, tree.host.retrieve_next_sibling, tree.score)
    producer.observe([Commit(name, (text[i],), 0, 0, False) for name in "xy"])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) >= 50


@algorithms
def test_invariant_7_trees_carry_the_step_they_were_made_for(name: str) -> None:
    producer = MAKERS[name]().make_producer(context(MarkovDrafter()))
    request = view([1, 2, 3, 1, 2])
    for step in (7, 3, 2**40):
        assert producer.propose(batch(request, step=step)).step == step
        assert producer.propose(batch(step=step)).step == step


@algorithms
def test_an_empty_batch_gives_an_empty_tree(name: str) -> None:
    tree = MAKERS[name]().make_producer(context(MarkovDrafter())).propose(batch())
    validate_tree(host(tree))
    assert tree.bs == tree.num_nodes == 0


@algorithms
def test_a_request_that_needs_no_draft_gets_its_root_alone(name: str) -> None:
    algorithm = MAKERS[name]()
    producer = algorithm.make_producer(context(MarkovDrafter()))
    requests = batch(view([1, 1, 1], "a", max_draft_tokens=0), view([1, 1, 1], "b"))
    tree = producer.propose(requests)
    check_contract(tree, requests, algorithm.topology, algorithm.proposal)
    assert paths(tree, 0) == [()]
    assert (len(paths(tree, 1)) > 1) == (algorithm.topology.max_depth > 0)


@algorithms
def test_an_algorithm_is_a_value_that_says_what_it_reads(name: str) -> None:
    algorithm = MAKERS[name]()
    assert algorithm.api_version == 1
    assert algorithm == MAKERS[name]()
    assert hash(algorithm) == hash(MAKERS[name]())
    with pytest.raises(FrozenInstanceError):
        algorithm.api_version = 1  # type: ignore[misc]  # this is what must fail
    reads_ids = name.startswith("ngram") or name in ("chain", "chain, short")
    needs = algorithm.make_producer(context(MarkovDrafter())).needs
    assert needs == ("history" if reads_ids else "nothing")
    assert supports_grammar_overlap(algorithm) is not reads_ids


@pytest.mark.parametrize("name", ["none", "ngram", "chain"])
def test_it_is_found_as_a_plugin_of_its_name(name: str) -> None:
    assert create(ALGORITHMS, name) == MAKERS[name]()


def test_none_proposes_roots() -> None:
    tree = NoSpeculation().make_producer(context()).propose(batch(view([4, 5], "a"), view([6], "b")))
    assert host(tree).draft_tokens.tolist() == [5, 6]
    assert NoSpeculation().topology == Topology("chain", max_nodes=1, max_depth=0)
