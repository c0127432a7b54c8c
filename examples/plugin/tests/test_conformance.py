"""The worker and the backend keep their contracts."""

from functools import partial

import pytest

from specgrammar.testing import BACKEND_CHECKS, MATCHER_CHECKS
from specgrammar_toys import ChoiceBackend, Recall


@pytest.mark.parametrize("check", [*BACKEND_CHECKS, *MATCHER_CHECKS])
def test_the_backend(check) -> None:
    check(ChoiceBackend)
