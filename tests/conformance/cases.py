"""What the kit is tested with: plugins that are each broken on purpose, in one way."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from specgrammar.testing.checks.base import Checks
from specgrammar.testing.checks.report import Outcome, run_checks


@dataclass(frozen=True)
class Broken:
    """A plugin with one fault, and how the kit has to find it.

    Attributes:
        fault: what is wrong with it, in a few words; a line of the table in docs/conformance.md.
        checks: the list that is run on it.
        make: the factory that the checks take.
        check: the name of the check that has to reject it.
        finds: a regular expression that the check's reason has to match: it is rejected for the right reason.
        given: what else the checks take.
    """

    fault: str
    checks: Checks
    make: Any
    check: str
    finds: str
    given: dict[str, Any] = field(default_factory=dict)

    def assert_rejected(self) -> Outcome:
        """Run the check and look at what it says; returns it."""
        (outcome,) = run_checks(self.checks, self.make, only=[self.check], **self.given)
        assert outcome.verdict == "broken", f"{self.fault}: {outcome.verdict}, {outcome.reason}"
        assert re.search(self.finds, outcome.reason), f"{self.fault}: found {outcome.reason!r}"
        return outcome
