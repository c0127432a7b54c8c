"""Options of plugins as a command line gives them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from specgrammar.checks import show
from specgrammar.errors import ConfigError


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` with TOML values; what is not TOML is a string."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"option {show(pair)}: expected KEY=VALUE")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 1,000 brackets
            raise ConfigError(f"option {show(pair)}: {error}") from error
    return options
