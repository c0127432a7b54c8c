"""The checks of backends and matchers: they reject what is broken, and pass ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specgrammar.errors import ConformanceError, MatcherError
from specgrammar.testing.checks.abilities import ABILITY_CHECKS
from specgrammar.testing.checks.backend import check_it_equals_the_reference
from specgrammar.testing.checks.base import Check
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from specgrammar_llguidance import LLGuidanceBackend
from specgrammar_xgrammar import XGrammarBackend
from tests.conformance.broken.abilities import BROKEN_ABILITIES, RIGHT_ABILITIES
from tests.conformance.broken.backends import BROKEN_BACKENDS
from tests.conformance.broken.masks import BROKEN_MASKS
from tests.conformance.broken.matchers import BROKEN_MATCHERS
from tests.conformance.broken.rejected import BACKEND_LISTS, backend_of
from tests.conformance.cases import Broken

CHECKS = [check for checks in BACKEND_LISTS for check in checks]
BROKEN = [*BROKEN_MATCHERS, *BROKEN_MASKS, *BROKEN_BACKENDS, *BROKEN_ABILITIES]


@pytest.mark.parametrize("make", [ReferenceBackend, XGrammarBackend, LLGuidanceBackend])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_our_backends_keep_the_contract(make: Any, check: Check) -> None:
    check(make)


class Window(ReferenceMatcher):
    """Keeps the last states alone, as many as the facts say: what was undone is gone from them."""

    most = 2
    room = 0

    def accept(self, token: int) -> bool:
        is_legal = super().accept(token)
        self.room = min(self.most, self.room + is_legal)
        return is_legal

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > self.room:
            raise MatcherError(f"rollback({num_tokens}): {self.room} tokens can be undone")
        super().rollback(num_tokens)
        self.room -= num_tokens


class NoWindow(Window):
    most = 0


class WindowBackend(ReferenceBackend):
    facts = replace(ReferenceBackend.facts, max_rollback=2)
    matcher_class = Window


class NoWindowBackend(ReferenceBackend):
    facts = replace(ReferenceBackend.facts, max_rollback=0)
    matcher_class = NoWindow


@pytest.mark.parametrize("make", [WindowBackend, NoWindowBackend])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_limit_on_rollback_is_kept_by_the_kit(make: Any, check: Check) -> None:
    check(make)


class AcceptRaises(ReferenceMatcher):
    def accept(self, token: int) -> bool:
        raise ZeroDivisionError(f"token {token}")


def test_what_a_matcher_raises_is_not_hidden_by_what_comes_of_it() -> None:
    with pytest.raises(ConformanceError, match="raised ZeroDivisionError: token 0"):
        check_it_equals_the_reference(backend_of(AcceptRaises))


@pytest.mark.parametrize("make", RIGHT_ABILITIES)
@pytest.mark.parametrize("check", ABILITY_CHECKS, ids=lambda check: check.__name__)
def test_what_the_broken_ones_are_made_from_is_right(make: Any, check: Check) -> None:
    check(make)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
