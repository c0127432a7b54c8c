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

from specgrammar.checks import check_int, check_number, check_text, refused
from specgrammar.errors import ConfigError
from specgrammar.grammar.compile import MAX_TIMEOUT_S
from specgrammar.spec.sampling import (
    AcceptMethod,
    MaskPolicyChoice,
    check_accept_method,
    check_mask_policy,
)

MAX_MB = 1 << 20
"""Largest bound on memory in MB: a terabyte."""
MAX_BATCH_SIZE = 65_536
"""Most requests in one step: what a step costs on the host grows with it long before this."""


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
        mask_policy: `eager` masks every row under the forward, `lazy` samples first and masks where the grammar
            forbids what the target chose, `auto` measures which costs less here. The tokens are the same.
        max_batch_size: most requests in one step, in [1, 65,536].
        compile_timeout_s: seconds that one grammar may take to compile, above 0 and at most a day. One that
            may hang is first tried in a process of its own, which is killed then; both have that long.
        compile_memory_mb: memory that one grammar may take in such a trial, in [64, 2**20] (Linux).
        compile_cache_entries: most compiled grammars that are kept for requests to come, in [0, 2**20].
        compile_cache_mb: most memory that they take together, in [0, 2**20].
        budget: draft tokens that a step verifies for a request on average, the likeliest of the batch: a
            number, or `auto` for as many as pay for themselves by this machine's measured steps. None: all that
            the algorithm drafts, and `auto` for one that is made of several (`forced+ngram`). An algorithm that
            has an option of this name (`eagle`) is given it; what it cuts on a stream or an accelerator stays
            in the forward as padding.
    """

    backend: str = "xgrammar"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = "none"
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    acceptance: AcceptMethod = "target_only"
    mask_policy: MaskPolicyChoice = "auto"
    max_batch_size: int = 8
    compile_timeout_s: float = 30.0
    compile_memory_mb: int = 2048
    compile_cache_entries: int = 1024
    compile_cache_mb: int = 512
    budget: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        check_text("config: backend", self.backend)
        check_text("config: algorithm", self.algorithm)
        for name in ("backend_options", "algorithm_options"):
            options = getattr(self, name)
            if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
                raise refused(f"config: {name}", options, "a table of options by name")
        if self.budget is not None and self.budget != "auto":
            check_int("config: budget (auto, or a number)", self.budget, 1)
        check_accept_method("config: acceptance", self.acceptance)
        check_mask_policy("config: mask_policy", self.mask_policy)
        check_int("config: max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE)
        check_number("config: compile_timeout_s", self.compile_timeout_s, 0, MAX_TIMEOUT_S, above=True)
        check_int("config: compile_memory_mb", self.compile_memory_mb, 64, MAX_MB)
        check_int("config: compile_cache_entries", self.compile_cache_entries, 0, MAX_MB)
        check_int("config: compile_cache_mb", self.compile_cache_mb, 0, MAX_MB)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """From a mapping with the attributes' names; unknown ones are refused."""
        known = [f.name for f in fields(cls)]
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ConfigError(
                f"config: unknown key {', '.join(map(repr, unknown))}; known keys: {', '.join(known)}"
            )
        return cls(**values)

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """From TOML text."""
        try:
            values = tomllib.loads(text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # a ValueError: broken syntax, or a number of 5,000 digits
            raise ConfigError(f"config: this is not TOML: {error}") from error
        return cls.from_dict(values)

    @classmethod
    def from_file(cls, path: str | Path) -> Config:
        """From a TOML file; messages name it."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the path
            raise ConfigError(f"config: {path} cannot be read: {error}") from error
        try:
            return cls.from_toml(text)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
