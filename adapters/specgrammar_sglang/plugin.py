# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""The entry point: everything that sglang is told, in every process, as often as it likes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from specgrammar.errors import PluginError
from specgrammar.registry import ALGORITHMS, plugins
from specgrammar_sglang.engine import ALGORITHM, GRAMMAR, MASK, check_interfaces, check_version

BACKENDS = {"specgrammar-xgrammar": "xgrammar", "specgrammar-llguidance": "llguidance"}
"""What `--grammar-backend` may be, and the backend of ours behind it."""

_MASK_FUNCTION = "sglang.srt.speculative.spec_utils.build_grammar_vocab_mask"


def algorithm_names() -> dict[str, str]:
    """What `--speculative-algorithm` may be, and the algorithm of ours, or of a third party, behind it."""
    return {f"SPECGRAMMAR_{plugin.name.upper()}": plugin.name for plugin in plugins(ALGORITHMS)}


def plugin() -> None:
    """Register grammar backends, algorithms, and the hook behind which masks are built.

    Raises PluginError for an sglang that is not supported. sglang logs what a plugin raises and goes on;
    whoever chooses something of ours is then refused at the start with the same message, and others have a
    stock sglang.
    """
    try:
        check_version()
        check_interfaces(GRAMMAR + MASK + ALGORITHM)
    except PluginError as error:
        _refuse(error)
        raise
    from specgrammar_sglang.algorithm import register_algorithm
    from specgrammar_sglang.backend import backend_maker
    from specgrammar_sglang.mask import build_mask

    for name, ours in BACKENDS.items():
        _register_backend(name, backend_maker(ours))
    for name, ours in algorithm_names().items():
        register_algorithm(name, ours)
    _hook(build_mask)


def _register_backend(name: str, maker: Callable[..., Any]) -> None:
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend
    from sglang.srt.server_args import GRAMMAR_BACKEND_CHOICES, add_grammar_backend_choices

    register_grammar_backend(name, maker)  # a second time replaces the first
    if name not in GRAMMAR_BACKEND_CHOICES:
        add_grammar_backend_choices([name])


def _hook(build: Callable[..., Any]) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if build not in [hook for _, hook, _ in HookRegistry._hooks[_MASK_FUNCTION]]:
        HookRegistry.register(_MASK_FUNCTION, build, HookType.AROUND)


def _refuse(error: PluginError) -> None:
    """Register our names, as far as this sglang lets us, so that choosing one raises the error."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    for name in BACKENDS:
        with suppress(Exception):
            _register_backend(name, fail)
    for name in algorithm_names():
        with suppress(Exception):
            from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

            SpeculativeAlgorithm.register(name, supports_overlap=True, validate_server_args=fail)(fail)
