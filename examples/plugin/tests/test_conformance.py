"""The backend and the worker keep their contracts."""

from collections.abc import Callable

import pytest

from specgrammar.testing import (
    ABILITY_CHECKS,
    BACKEND_CHECKS,
    MASK_CHECKS,
    MATCHER_CHECKS,
    PRODUCER_CHECKS,
    WORKER_CHECKS,
)
from specgrammar_toys import ChoiceBackend, Recall


@pytest.mark.parametrize("check", [*BACKEND_CHECKS, *MATCHER_CHECKS, *MASK_CHECKS, *ABILITY_CHECKS])
def test_backend(check: Callable[..., None]) -> None:
    check(ChoiceBackend)


@pytest.mark.parametrize("check", [*PRODUCER_CHECKS, *WORKER_CHECKS])
def test_worker(check: Callable[..., None]) -> None:
    check(Recall)
