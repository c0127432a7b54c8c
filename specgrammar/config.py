"""What a user configures, as one frozen value: from code, a dict or TOML.

backend = "xgrammar"        # or "llguidance": the whole change that a swap needs
algorithm = "ngram"

[algorithm_options]
num_draft_tokens = 12
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from specgrammar.errors import ConfigError

AcceptMethod = Literal["target_only", "rejection"]


@dataclass(frozen=True)
class Config:
    """An engine's configuration; an impossible one is refused when it is made or when the engine is.

    Attributes:
        backend: name of a grammar backend (`specgrammar plugins` lists them).
        backend_options: its options.
        algorithm: name of a speculative algorithm; `none` is ordinary decoding on the same path.
        algorithm_options: its options.
        acceptance: `target_only` (exact, and the same tokens whatever the algorithm) or `rejection` (exact
            in law; for algorithms whose drafts are sampled from a stated distribution).
        max_batch_size: most requests in one step, at least 1.
        compile_timeout_s: seconds that one grammar may take to compile.
    """

    backend: str = "xgrammar"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "none"
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    acceptance: AcceptMethod = "target_only"
    max_batch_size: int = 8
    compile_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        expected: dict[str, tuple[type | tuple[type, ...], str]] = {
            "backend": (str, "a name"),
            "backend_options": (Mapping, "a table"),
            "algorithm": (str, "a name"),
            "algorithm_options": (Mapping, "a table"),
            "acceptance": (str, "a name"),
            "max_batch_size": (int, "a whole number"),
            "compile_timeout_s": ((int, float), "a number of seconds"),
        }
        for name, (kind, words) in expected.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ConfigError(f"config: {name} = {value!r}; expected {words}")
        if self.acceptance not in ("target_only", "rejection"):
            raise ConfigError(
                f"config: acceptance = {self.acceptance!r}; expected 'target_only' or 'rejection'"
            )
        if self.max_batch_size < 1:
            raise ConfigError(f"config: max_batch_size = {self.max_batch_size}; expected at least 1")
        if not self.compile_timeout_s > 0:
            raise ConfigError(f"config: compile_timeout_s = {self.compile_timeout_s}; expected more than 0")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """From a mapping with the attributes' names; unknown ones are refused."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(
                f"config: unknown key {', '.join(map(repr, unknown))}; known keys: {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """From TOML text."""
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"config: this is not TOML: {error}") from error

    @classmethod
    def from_file(cls, path: str | Path) -> Config:
        """From a TOML file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"config: {path} cannot be read: {error}") from error
        return cls.from_toml(text)
