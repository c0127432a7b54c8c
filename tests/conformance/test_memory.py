"""The checks of allocators and staging strategies: they reject what is broken, and pass ours."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.staging import from_chain, from_device, from_host, staging_for
from specgrammar.protocols.staging import Device
from specgrammar.testing.checks.allocator import ALLOCATOR_CHECKS
from specgrammar.testing.checks.base import Check
from specgrammar.testing.checks.staging import STAGING_CHECKS, Trees
from tests.conformance.broken.allocators import BROKEN_ALLOCATORS
from tests.conformance.broken.stagings import BROKEN_STAGINGS
from tests.conformance.cases import Broken


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("check", ALLOCATOR_CHECKS, ids=lambda check: check.__name__)
def test_our_ring_keeps_the_contract(check: Check, num_slots: int) -> None:
    check(partial(BitmaskRing, num_slots=num_slots))


def hosts_only(_: Device) -> Any:
    return from_host()


STRATEGIES: dict[str, tuple[Any, Trees]] = {
    "from_host": (hosts_only, "tree"),
    "from_device": (from_device, "tree"),
    "from_chain": (from_chain, "chain"),
    "for trees": (partial(staging_for, "tree"), "tree"),
    "for chains": (partial(staging_for, "chain"), "chain"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("check", STAGING_CHECKS, ids=lambda check: check.__name__)
def test_our_strategies_keep_the_contract(check: Check, strategy: str) -> None:
    make, topology = STRATEGIES[strategy]
    check(make, topology)


@pytest.mark.parametrize("broken", [*BROKEN_ALLOCATORS, *BROKEN_STAGINGS], ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
