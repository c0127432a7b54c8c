"""The checks of ledgers: they reject what is broken, and pass ours."""

from __future__ import annotations

import pytest

from specgrammar.runtime.ledger import Ledger
from specgrammar.testing.checks.base import Check
from specgrammar.testing.checks.ledger import LEDGER_CHECKS
from tests.conformance.broken.ledgers import BROKEN_LEDGERS
from tests.conformance.cases import Broken


@pytest.mark.parametrize("check", LEDGER_CHECKS, ids=lambda check: check.__name__)
def test_our_ledger_keeps_the_contract(check: Check) -> None:
    check(Ledger)


@pytest.mark.parametrize("broken", BROKEN_LEDGERS, ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
