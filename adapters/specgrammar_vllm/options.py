"""What a user configures: the table `specgrammar` in vLLM's `additional_config`.

That field is vLLM's own place for "out of tree" configuration: it is part of `VllmConfig`, so it reaches the
engine core and the workers in whatever processes they run, it has a flag (`--additional-config`), and it counts
in the hash of the configuration. An environment variable would reach them too, but not be seen in any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from specgrammar.checks import check_choice, check_int, check_number, check_text, refused
from specgrammar.errors import ConfigError
from specgrammar.grammar.compile import MAX_TIMEOUT_S

KEY = "specgrammar"
Grammars = Literal["vllm", "specgrammar"]


@dataclass(frozen=True)
class Options:
    """The adapter's configuration.

    Attributes:
        backend: name of a grammar backend (`specgrammar plugins` lists them).
        backend_options: its options.
        grammars: `vllm`: grammar and vocabulary as vLLM itself hands them to xgrammar, so that every row is bit
            by bit its own; the default for the backend `xgrammar`, and possible for no other. `specgrammar`:
            our rules, which are quicker to fill, and no control token inside a string.
        allow_weakened: take JSON Schemas with keywords that are not enforced, and log these; else such a
            request fails. By default as `grammars` says: vLLM takes them.
        compile_timeout_s: seconds that one grammar may take to compile, above 0 and at most a day.
        compile_memory_mb: memory that one grammar may take where it is tried first (Linux).
        fill_threads: threads beside the scheduler's that fill rows while the forward is launched, in [0, 64].
        forced_drafts: add what the grammar forces to the drafts of a request, for methods whose drafts have no
            probabilities; by default where that is possible.
        algorithm: name of the speculative algorithm behind `specgrammar_vllm.Proposer`; None for `ngram` that
            proposes chains of `num_speculative_tokens`.
        algorithm_options: its options.
    """

    backend: str = "xgrammar"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    grammars: Grammars | None = None
    allow_weakened: bool | None = None
    compile_timeout_s: float = 30.0
    compile_memory_mb: int = 2048
    fill_threads: int = 1
    forced_drafts: bool | None = None
    algorithm: str | None = None
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text(f"{KEY}: backend", self.backend)
        for name in ("backend_options", "algorithm_options"):
            table = getattr(self, name)
            if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
                raise refused(f"{KEY}: {name}", table, "a table of options by name")
        check_choice(f"{KEY}: grammars", self.grammars, (None, *get_args(Grammars)))
        check_choice(f"{KEY}: allow_weakened", self.allow_weakened, (None, True, False))
        check_number(f"{KEY}: compile_timeout_s", self.compile_timeout_s, 0, MAX_TIMEOUT_S, above=True)
        check_choice(f"{KEY}: forced_drafts", self.forced_drafts, (None, True, False))
        check_int(f"{KEY}: compile_memory_mb", self.compile_memory_mb, 64, 1 << 20)
        check_int(f"{KEY}: fill_threads", self.fill_threads, 0, 64)
        if self.algorithm is not None:
            check_text(f"{KEY}: algorithm", self.algorithm)
        elif self.algorithm_options:
            raise ConfigError(f"{KEY}: algorithm_options need an algorithm, e.g. 'algorithm': 'ngram'")
        if self.grammars == "vllm" and self.backend != "xgrammar":
            raise ConfigError(
                f"{KEY}: grammars = 'vllm' is for the backend 'xgrammar', not for {self.backend!r}; "
                "leave it out, or say 'specgrammar'"
            )

    @classmethod
    def of(cls, additional_config: object) -> Options:
        """Out of vLLM's `additional_config`; all defaults where it has no table `specgrammar`.

        Raises ConfigError for a key that is unknown and for a value that is impossible.
        """
        table = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(table, Mapping):
            raise refused(f"additional_config: {KEY}", table, "a table")
        known = [option.name for option in fields(cls)]
        unknown = [key for key in table if key not in known]
        if unknown:
            raise ConfigError(
                f"additional_config: {KEY} has no {', '.join(map(repr, unknown))}; it has: {', '.join(known)}"
            )
        return cls(**table)

    @property
    def as_vllm(self) -> bool:
        """Whether grammars and vocabulary are those that vLLM itself would use."""
        return self.grammars == "vllm" or (self.grammars is None and self.backend == "xgrammar")

    @property
    def takes_weakened(self) -> bool:
        """Whether a schema may have keywords that are not enforced."""
        return self.as_vllm if self.allow_weakened is None else self.allow_weakened
