"""`--trace FILE`: a run's timeline, on disk also where the run fails or is interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgrammar.checks import show
from specgrammar.errors import ConfigError
from specgrammar.protocols.spec import supports_grammar_overlap
from specgrammar.registry import algorithm_of

if TYPE_CHECKING:
    from specgrammar.protocols.adapter import EngineAdapter
    from specgrammar.runtime.engine import Engine


def check_trace_path(path: str | None) -> None:
    """Refuse, before anything is loaded, a path at which no file can be."""
    if path is None:
        return
    folder = Path(path).parent
    if "\0" in path or Path(path).is_dir() or not folder.is_dir():
        raise ConfigError(
            f"--trace: {show(path)} is no place for a file: it is a folder, or its folder is not there"
        )
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ConfigError(f"--trace: {show(path)} may not be written")


@contextmanager
def recording(path: str | None, engine: Engine, adapter: EngineAdapter) -> Iterator[None]:
    """Record what the engine does inside, and write it whatever ends that; without a path do nothing."""
    if path is None:
        yield
        return
    from specgrammar.runtime.timeline import Timeline

    engine.trace.timeline = timeline = Timeline(facts_of(engine, adapter))
    try:
        yield
    finally:
        timeline.facts |= facts_behind(engine)
        timeline.save(path)


def facts_behind(engine: Engine) -> dict[str, Any]:
    """What a trace says about its run when it is over."""
    return {"masking": engine.masking, "num_overlapped_steps": engine.trace.num_overlapped_steps}


def facts_of(engine: Engine, adapter: EngineAdapter) -> dict[str, Any]:
    """What a trace says about its run."""
    config, device = engine.config, adapter.device
    return {
        "algorithm": config.algorithm,
        "backend": config.backend,
        "device": f"{device.torch_device} ({type(device).__name__})",
        "policy": config.mask_policy,
        "max_batch_size": config.max_batch_size,
        "supports_grammar_overlap": supports_grammar_overlap(algorithm_of(config)),
        "needs": engine.producer.needs,
    }
