"""What the adapter checks of vLLM when it is loaded, run in vLLM's own environment; prints JSON."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from specgrammar.errors import SpecGrammarError
from specgrammar_vllm import engine, plugin
from specgrammar_vllm.scheduler import AsyncScheduler, Scheduler, _WithOurWalks


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


class Begun:
    """A manager that notes for whom rows are begun."""

    def __init__(self) -> None:
        self.request_ids: list[str] | None = None

    def begin(self, _: object, request_ids: list[str], __: object) -> None:
        self.request_ids = request_ids


def begun_for(*, has_grammar: bool = True, pending: bool = False) -> list[str] | None:
    """For whom rows are begun when a step with four requests is scheduled; None where they are not."""

    class Base:
        def schedule(self) -> Any:
            return SimpleNamespace(
                has_structured_output_requests=has_grammar,
                pending_structured_output_tokens=pending,
                num_scheduled_tokens=dict.fromkeys(("free", "in its prompt", "bound", "gone"), 1),
                scheduled_spec_decode_tokens={},
            )

    class Ours(_WithOurWalks, Base):
        def __init__(self) -> None:
            self.structured_output_manager = Begun()
            self.requests = {
                "free": SimpleNamespace(use_structured_output=False, is_prefill_chunk=False),
                "in its prompt": SimpleNamespace(use_structured_output=True, is_prefill_chunk=True),
                "bound": SimpleNamespace(use_structured_output=True, is_prefill_chunk=False),
            }

    scheduler = Ours()
    scheduler.schedule()
    found: list[str] | None = scheduler.structured_output_manager.request_ids
    return found


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
        "begun": begun_for(),
        "begun without grammars": begun_for(has_grammar=False),
        "begun with tokens outstanding": begun_for(pending=True),
        "bases": [
            issubclass(Scheduler, engine.VllmScheduler),
            issubclass(AsyncScheduler, engine.VllmAsyncScheduler),
        ],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
