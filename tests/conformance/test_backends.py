"""The checks of backends and matchers: they reject what is broken, and pass ours."""

from __future__ import annotations

from typing import Any

import pytest

from specgrammar.testing.checks.abilities import ABILITY_CHECKS
from specgrammar.testing.checks.base import Check
from specgrammar.testing.reference import ReferenceBackend
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_xgrammar import XGrammarBackend
from tests.conformance.broken.abilities import BROKEN_ABILITIES, RIGHT_ABILITIES
from tests.conformance.broken.backends import BROKEN_BACKENDS
from tests.conformance.broken.masks import BROKEN_MASKS
from tests.conformance.broken.matchers import BROKEN_MATCHERS
from tests.conformance.broken.rejected import BACKEND_LISTS
from tests.conformance.cases import Broken

CHECKS = [check for checks in BACKEND_LISTS for check in checks]
BROKEN = [*BROKEN_MATCHERS, *BROKEN_MASKS, *BROKEN_BACKENDS, *BROKEN_ABILITIES]


@pytest.mark.parametrize("make", [ReferenceBackend, XGrammarBackend, LLGuidanceBackend])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_our_backends_keep_the_contract(make: Any, check: Check) -> None:
    check(make)


@pytest.mark.parametrize("make", RIGHT_ABILITIES)
@pytest.mark.parametrize("check", ABILITY_CHECKS, ids=lambda check: check.__name__)
def test_what_the_broken_ones_are_made_from_is_right(make: Any, check: Check) -> None:
    check(make)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
