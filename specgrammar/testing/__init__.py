"""What a plugin is tested with: the conformance kit, strategies, and a world to play in.

In pytest, for a backend (an algorithm likewise, with `PRODUCER_CHECKS` and `WORKER_CHECKS`):

    @pytest.mark.parametrize("check", [*BACKEND_CHECKS, *MATCHER_CHECKS, *MASK_CHECKS, *ABILITY_CHECKS])
    def test_it_keeps_its_contract(check):
        check(MyBackend)

On a command line: `specgrammar check backend NAME`. Needs `pip install 'specgrammar[testing]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specgrammar.testing.checks.abilities import ABILITY_CHECKS
    from specgrammar.testing.checks.allocator import ALLOCATOR_CHECKS
    from specgrammar.testing.checks.backend import BACKEND_CHECKS
    from specgrammar.testing.checks.base import Checks
    from specgrammar.testing.checks.gate import GATE_CHECKS
    from specgrammar.testing.checks.ledger import LEDGER_CHECKS
    from specgrammar.testing.checks.machine import matcher_machine
    from specgrammar.testing.checks.mask import MASK_CHECKS
    from specgrammar.testing.checks.matcher import MATCHER_CHECKS
    from specgrammar.testing.checks.producer import PRODUCER_CHECKS
    from specgrammar.testing.checks.report import Outcome, run_checks
    from specgrammar.testing.checks.staging import STAGING_CHECKS
    from specgrammar.testing.checks.target import TARGET_CHECKS
    from specgrammar.testing.checks.worker import WORKER_CHECKS
    from specgrammar.testing.delayed_device import DelayedDevice
    from specgrammar.testing.reference import ReferenceBackend
    from specgrammar.testing.schedules import Schedule, listed_schedules
    from specgrammar.testing.strategies import grammar_specs, token_paths, trees
    from specgrammar.testing.world import TOY_WORLD, World, adapter_world

_HOMES = {
    "ABILITY_CHECKS": "checks.abilities",
    "ALLOCATOR_CHECKS": "checks.allocator",
    "BACKEND_CHECKS": "checks.backend",
    "Checks": "checks.base",
    "DelayedDevice": "delayed_device",
    "GATE_CHECKS": "checks.gate",
    "LEDGER_CHECKS": "checks.ledger",
    "MASK_CHECKS": "checks.mask",
    "MATCHER_CHECKS": "checks.matcher",
    "Outcome": "checks.report",
    "PRODUCER_CHECKS": "checks.producer",
    "ReferenceBackend": "reference",
    "STAGING_CHECKS": "checks.staging",
    "Schedule": "schedules",
    "TARGET_CHECKS": "checks.target",
    "TOY_WORLD": "world",
    "WORKER_CHECKS": "checks.worker",
    "World": "world",
    "adapter_world": "world",
    "grammar_specs": "strategies",
    "listed_schedules": "schedules",
    "matcher_machine": "checks.machine",
    "token_paths": "strategies",
    "run_checks": "checks.report",
    "trees": "strategies",
}

__all__ = [
    "ABILITY_CHECKS",
    "ALLOCATOR_CHECKS",
    "BACKEND_CHECKS",
    "Checks",
    "DelayedDevice",
    "GATE_CHECKS",
    "LEDGER_CHECKS",
    "MASK_CHECKS",
    "MATCHER_CHECKS",
    "Outcome",
    "PRODUCER_CHECKS",
    "ReferenceBackend",
    "STAGING_CHECKS",
    "Schedule",
    "TARGET_CHECKS",
    "TOY_WORLD",
    "WORKER_CHECKS",
    "World",
    "adapter_world",
    "grammar_specs",
    "listed_schedules",
    "matcher_machine",
    "token_paths",
    "run_checks",
    "trees",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
