"""What the adapter checks of vLLM when it is loaded, run in vLLM's own environment; prints JSON."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from specgrammar.errors import SpecGrammarError
from specgrammar_vllm import engine, plugin
from specgrammar_vllm.scheduler import AsyncScheduler, Scheduler


def message_of(call: Any, *arguments: object) -> str:
    """What a call raises on purpose; empty where it does not."""
    try:
        call(*arguments)
    except SpecGrammarError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def config(*, asynchronous: bool, method: str | None = None) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        speculative_config=None if method is None else SimpleNamespace(method=method),
    )


def main() -> None:
    changed = dataclasses.replace(engine.EXPECTATIONS[0], expected=["other"])
    gone = dataclasses.replace(engine.EXPECTATIONS[0], find=lambda: engine.VllmScheduler.no_such_thing)
    plugin.register()
    plugin.register()
    result = {
        "problems": [e.problem() for e in [*engine.EXPECTATIONS, engine.proposer_expectation()]],
        "changed": message_of(engine.check, [changed]),
        "gone": message_of(engine.check, [gone]),
        "plugins": [entry.value for entry in entry_points(group="vllm.general_plugins")],
        "sync under async": message_of(Scheduler.check, config(asynchronous=True)),
        "sync": message_of(Scheduler.check, config(asynchronous=False, method="custom_class")),
        "async under sync": message_of(AsyncScheduler.check, config(asynchronous=False)),
        "async with a proposer": message_of(
            AsyncScheduler.check, config(asynchronous=True, method="custom_class")
        ),
        "async": message_of(AsyncScheduler.check, config(asynchronous=True, method="eagle")),
        "bases": [
            issubclass(Scheduler, engine.VllmScheduler),
            issubclass(AsyncScheduler, engine.VllmAsyncScheduler),
        ],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
