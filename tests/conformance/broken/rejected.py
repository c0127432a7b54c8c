"""How broken backends are written down: the check that has to reject them says which list it is in."""

from __future__ import annotations

from typing import Any

from specgrammar.testing.checks.abilities import ABILITY_CHECKS
from specgrammar.testing.checks.backend import BACKEND_CHECKS
from specgrammar.testing.checks.base import Check
from specgrammar.testing.checks.mask import MASK_CHECKS
from specgrammar.testing.checks.matcher import MATCHER_CHECKS
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from tests.conformance.cases import Broken

BACKEND_LISTS = (MATCHER_CHECKS, MASK_CHECKS, BACKEND_CHECKS, ABILITY_CHECKS)


def rejected(fault: str, make: Any, check: Check, finds: str) -> Broken:
    """A broken backend, or a matcher that makes the reference one."""
    if isinstance(make, type) and issubclass(make, ReferenceMatcher):
        make = backend_of(make)
    (checks,) = (checks for checks in BACKEND_LISTS if check in checks)
    return Broken(fault, checks, make, check.__name__, finds)


def backend_of(matcher: type[ReferenceMatcher]) -> type[ReferenceBackend]:
    """The reference with another matcher."""
    return type(f"{matcher.__name__}Backend", (ReferenceBackend,), {"matcher_class": matcher})
