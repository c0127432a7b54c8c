"""vLLM's general plugin: says in every process, before anything starts, whether this vLLM is supported."""

from __future__ import annotations

import logging

from specgrammar_vllm import versions

_log = logging.getLogger(__name__)


def register() -> None:
    """Log a warning for a vLLM outside the version table.

    vLLM calls it in each of its processes, also where nothing of ours is configured. So it changes nothing,
    raises nothing, imports nothing of vLLM but its version, and may be called any number of times.
    """
    import vllm  # pyright: ignore[reportMissingImports]  # in vLLM's environment only

    wrong = versions.problem("vllm", vllm.__version__)
    if wrong:
        _log.warning("specgrammar: %s. Its scheduler and proposer will refuse to start", wrong)
