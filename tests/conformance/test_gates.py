"""The checks of gates: they reject what is broken, and pass ours and users'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from specgrammar.errors import ConformanceError
from specgrammar.grammar.gate import Markers
from specgrammar.protocols.gate import GrammarGate
from specgrammar.testing.checks.base import Check
from specgrammar.testing.checks.gate import GATE_CHECKS
from tests.conformance.broken.gates import BROKEN_GATES, OPENED_BY, CallGate
from tests.conformance.cases import Broken
from tests.gate.detectors import BlockGate, SpelledGate, TextGate

RIGHT: dict[str, tuple[Callable[[], GrammarGate], tuple[int, ...]]] = {
    "one marker": (lambda: Markers(after=((5, 5, 6),)), (5, 5, 5, 6)),
    "several": (lambda: Markers(after=((4,), (6, 7)), at=((0, 1, 0),)), (6, 0, 0, 1, 0)),
    "a text": (lambda: TextGate(b"abc1"), (12, 3, 2, 12)),
    "blocks": (lambda: BlockGate(6, 7), (6, 6, 7, 7)),
    "spellings": (lambda: SpelledGate(b"abc"), (0, 3, 2)),
    "what the broken ones are made from": (CallGate, OPENED_BY),
}


class AskedToThink(CallGate):
    """Open from the start, unless the prompt says to think."""

    def start(self, prompt_tokens: Sequence[int]) -> int:
        return 0 if prompt_tokens[-1:] == (9,) else 2


@pytest.mark.parametrize("check", GATE_CHECKS, ids=lambda check: check.__name__)
def test_a_gate_that_most_prompts_open_is_checked_behind_one_that_does_not(check: Check) -> None:
    check(AskedToThink, opened_by=OPENED_BY, prompt=(9,))


def test_a_gate_that_is_open_already_needs_another_prompt() -> None:
    with pytest.raises(ConformanceError, match=r"behind the prompt \[\]; give the check a prompt"):
        GATE_CHECKS[0](AskedToThink, opened_by=OPENED_BY)


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("check", GATE_CHECKS, ids=lambda check: check.__name__)
def test_right_gates_keep_the_contract(kind: str, check: Check) -> None:
    make, opened_by = RIGHT[kind]
    check(make, opened_by=opened_by)


@pytest.mark.parametrize("broken", BROKEN_GATES, ids=lambda broken: broken.fault)
def test_what_is_broken_is_rejected_for_the_right_reason(broken: Broken) -> None:
    broken.assert_rejected()
