"""Options of plugins as a command line gives them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from specgrammar.checks import show
from specgrammar.errors import ConfigError


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` with TOML values; what is not TOML is a string. `PART.KEY=VALUE` is an option of a part."""
    options: dict[str, Any] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        *parts, key = path.split(".")
        if not equals or not all(name.isidentifier() for name in (*parts, key)):
            raise ConfigError(f"option {show(pair)}: expected KEY=VALUE")
        table = options
        for part in parts:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"option {show(pair)}: {part} is a value already, and cannot hold options")
        table[key] = _value(pair, value)
    return options


def _value(pair: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 1,000 brackets
        raise ConfigError(f"option {show(pair)}: {error}") from error
