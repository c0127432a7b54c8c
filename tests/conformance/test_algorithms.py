"""The kit's checks of algorithms: ours keep them, and every broken one is rejected for its fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.spec.chain import ChainAlgorithm
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.forced import ForcedAlgorithm
from specgrammar.spec.ngram import NgramAlgorithm
from specgrammar.spec.none import NoSpeculation
from specgrammar.testing.checks import smallest
from specgrammar.testing.checks.base import Checks
from specgrammar.testing.checks.producer import PRODUCER_CHECKS
from specgrammar.testing.checks.report import run_checks
from specgrammar.testing.checks.worker import WORKER_CHECKS
from specgrammar.testing.world import TOY_WORLD
from tests.conformance.broken.producers import PRODUCERS, Algorithm, Copier
from tests.conformance.broken.workers import WORKERS
from tests.conformance.cases import Broken
from tests.spec.toy_eagle import toy_eagle

OURS: dict[str, Callable[[], SpecAlgorithm]] = {
    "none": NoSpeculation,
    "ngram, wide": partial(NgramAlgorithm, num_draft_tokens=12, breadth=8, depth=3, capacity=10),
    "chain": ChainAlgorithm,
    "forced": ForcedAlgorithm,
    "chain, model": partial(ChainAlgorithm, drafter="toy"),
    "chain, sampled": partial(ChainAlgorithm, drafter="toy", draft_sampling="sampled", num_draft_tokens=3),
    "eagle": partial(toy_eagle, 3, 3, 9),
    "eagle, chain": partial(toy_eagle, 1, 4, 5),
    "eagle, cut chain": partial(toy_eagle, 1, 4, 3),
    "what the broken ones break": partial(Algorithm, Copier),
}
WHOLE = ("ngram, wide", "forced", "chain, model", "chain, sampled", "eagle", "what the broken ones break")


def assert_kept(checks: Checks, make: Callable[[], SpecAlgorithm]) -> None:
    broken = [outcome.text() for outcome in run_checks(checks, make) if outcome.verdict == "broken"]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", OURS)
def test_our_producers_keep_the_contract(name: str) -> None:
    assert_kept(PRODUCER_CHECKS, OURS[name])


@pytest.mark.parametrize("name", WHOLE)
def test_our_workers_keep_the_contract(name: str) -> None:
    assert_kept(WORKER_CHECKS, OURS[name])


def test_a_head_that_reads_the_grammar_keeps_the_contract() -> None:
    assert_kept(WORKER_CHECKS, partial(toy_eagle, 3, 2, 7, grammar_aware=True))


@pytest.mark.parametrize("broken", PRODUCERS, ids=[broken.fault for broken in PRODUCERS])
def test_broken_producers_are_rejected(broken: Broken) -> None:
    assert len(broken.assert_rejected().example) <= 12


@pytest.mark.parametrize("broken", WORKERS, ids=[broken.fault for broken in WORKERS])
def test_broken_workers_are_rejected(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smallest, "SHRINK_TIME_S", 30.0)  # however slow this machine is
    assert len(broken.assert_rejected().example) <= 12


def test_a_world_says_what_cannot_draft_in_it() -> None:
    assert TOY_WORLD.refusal(NoSpeculation) == ""
    assert "has shape [19, 16], expected [49152, 576]" in TOY_WORLD.refusal(EagleAlgorithm)
