"""What is said of our own algorithms alone; what every algorithm keeps is the kit's to check."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from specgrammar.protocols.spec import SpecAlgorithm, Topology, supports_grammar_overlap
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.device import InlineDevice
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.world import TOY_WORLD, context_of
from tests.spec.drafting import batch, context, host, view
from tests.spec.toy_eagle import toy_eagle


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


@pytest.mark.parametrize(
    ("algorithm", "needs"),
    [
        (NoSpeculation(), "nothing"),
        (NgramAlgorithm(), "history"),
        (ChainAlgorithm(), "history"),
        (ChainAlgorithm(drafter="toy"), "nothing"),
        (toy_eagle(3, 3, 9), "nothing"),
        (toy_eagle(3, 3, 9, grammar_aware=True), "grammar"),
    ],
)
def test_an_algorithm_says_what_it_reads(algorithm: SpecAlgorithm, needs: str) -> None:
    with TOY_WORLD.opened(InlineDevice()) as adapter:
        assert algorithm.make_producer(context_of(adapter)).needs == needs
    assert supports_grammar_overlap(algorithm) is (needs == "nothing")


@pytest.mark.parametrize("name", ["none", "ngram", "chain"])
def test_it_is_found_as_a_plugin_of_its_name(name: str) -> None:
    assert (
        create(ALGORITHMS, name)
        == {"none": NoSpeculation(), "ngram": NgramAlgorithm(), "chain": ChainAlgorithm()}[name]
    )


def test_none_proposes_roots() -> None:
    tree = NoSpeculation().make_producer(context()).propose(batch(view([4, 5], "a"), view([6], "b")))
    assert host(tree).draft_tokens.tolist() == [5, 6]
    assert NoSpeculation().topology == Topology("chain", max_nodes=1, max_depth=0)
