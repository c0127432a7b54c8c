"""Configuration: what is refused, and what a message must say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.spec.sampling import SamplingParams


def test_from_toml_reads_every_field() -> None:
    text = """
    backend = "llguidance"
    algorithm = "ngram"
    acceptance = "target_only"
    max_batch_size = 4
    compile_timeout_s = 2.5
    [backend_options]
    a = 1
    [algorithm_options]
    num_draft_tokens = 3
    """
    config = Config.from_toml(text)
    assert config == Config("llguidance", {"a": 1}, "ngram", {"num_draft_tokens": 3}, "target_only", 4, 2.5)


def test_swapping_the_backend_is_one_field() -> None:
    assert dataclasses.replace(Config(), backend="llguidance") == Config.from_toml('backend = "llguidance"')


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().backend = "other"  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bakend": "xgrammar"}, ["unknown key 'bakend'", "backend"]),
        ({"backend": 3}, ["backend = 3", "a name"]),
        ({"backend_options": ["a"]}, ["backend_options", "a table"]),
        ({"acceptance": "typical"}, ["'typical'", "target_only", "rejection"]),
        ({"max_batch_size": 0}, ["max_batch_size = 0", "at least 1"]),
        ({"max_batch_size": True}, ["max_batch_size = True", "whole number"]),
        ({"max_batch_size": 2.0}, ["max_batch_size = 2.0", "whole number"]),
        ({"compile_timeout_s": 0}, ["compile_timeout_s = 0"]),
        ({"compile_timeout_s": float("nan")}, ["compile_timeout_s = nan"]),
    ],
)
def test_impossible_values_are_refused_with_the_reason(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_dict(values)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_broken_toml_and_missing_files_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not TOML"):
        Config.from_toml("backend = ")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_file(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_file(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
def test_sampling_parameters_out_of_range_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        SamplingParams(**values)
