"""Which versions the adapter was written and tested for."""

from __future__ import annotations

import re
from importlib import metadata

from specgrammar.errors import PluginError

Version = tuple[int, ...]

SUPPORTED: dict[str, tuple[Version, Version]] = {
    "vllm": ((0, 32, 0), (0, 33)),
    "xgrammar": ((0, 2, 8), (0, 2, 9)),
    "llguidance": ((1, 7, 6), (1, 8)),
}
"""By name: the lowest version, and the first one that is too high. The libraries' are those of vLLM 0.32."""


def supported(name: str) -> str:
    """The versions as a requirement: `vllm>=0.32.0,<0.33`."""
    low, high = SUPPORTED[name]
    return f"{name}>={_text(low)},<{_text(high)}"


def problem(name: str, found: str) -> str:
    """What is wrong with a version, and what to do; empty where nothing is. Builds (`+cpu`) count alike."""
    numbers = re.match(r"\d+(\.\d+)*", found)
    version = tuple(map(int, numbers[0].split("."))) if numbers else ()
    low, high = SUPPORTED[name]
    is_final = numbers is not None and re.fullmatch(r"(\.post\d+)?(\+.*)?", found[numbers.end() :]) is not None
    if is_final and low <= version < high:
        return ""
    return (
        f"{name} {found} is installed, and specgrammar_vllm supports {supported(name)}; "
        f"pip install '{supported(name)}', or a version of specgrammar that was made for this one"
    )


def check(name: str, found: str | None = None) -> None:
    """Raise PluginError for a version outside the table; by default of what is installed under the name."""
    wrong = problem(name, metadata.version(name) if found is None else found)
    if wrong:
        raise PluginError(wrong)


def _text(version: Version) -> str:
    return ".".join(map(str, version))
