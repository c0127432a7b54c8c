"""What the tests of overlap share."""

from __future__ import annotations

import pytest

from specgrammar.testing.requests import REQUESTS
from tests.overlap.schedules import alone
from tests.toys import BACKEND_NAMES


@pytest.fixture(scope="session", autouse=True)
def expected_outputs() -> None:
    """Make every output that `alone` keeps, before a test takes a guard away under which it would be wrong."""
    for name in BACKEND_NAMES:
        for number in range(len(REQUESTS)):
            alone(name, number)
