"""Configuration: what is refused, and what a message must say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import Proposal
from specgrammar.registry import BACKENDS, create
from specgrammar.spec.accept import check_acceptance
from specgrammar.spec.sampling import AcceptMethod, SamplingParams


def test_from_toml_reads_every_field() -> None:
    text = """
    backend = "llguidance"
    algorithm = "ngram"
    acceptance = "target_only"
    mask_policy = "lazy"
    max_batch_size = 4
    compile_timeout_s = 2.5
    compile_memory_mb = 64
    compile_cache_entries = 0
    compile_cache_mb = 5
    budget = 7
    [backend_options]
    a = 1
    [algorithm_options]
    num_draft_tokens = 3
    """
    config = Config.from_toml(text)
    assert config == Config(
        "llguidance", {"a": 1}, "ngram", {"num_draft_tokens": 3}, "target_only", "lazy", 4, 2.5, 64, 0, 5, 7
    )


def test_swapping_the_backend_is_one_field() -> None:
    assert dataclasses.replace(Config(), backend="llguidance") == Config.from_toml('backend = "llguidance"')


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().backend = "other"  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bakend": "xgrammar"}, ["unknown key 'bakend'", "backend"]),
        ({"backend": 3}, ["backend = 3", "text"]),
        ({"backend": ""}, ["backend = ''", "not empty"]),
        ({"algorithm": "\udcff"}, ["algorithm = '\\udcff'", "surrogate"]),
        ({"backend_options": ["a"]}, ["backend_options", "a table"]),
        ({"algorithm_options": {1: 2}}, ["algorithm_options = {1: 2}", "by name"]),
        ({"acceptance": ["rejection"]}, ["acceptance = ['rejection']", "target_only"]),
        ({"acceptance": "typical"}, ["'typical'", "target_only", "rejection"]),
        ({"budget": 0}, ["budget", "auto", "= 0", ">= 1"]),
        ({"budget": "most"}, ["budget", "auto", "= 'most'"]),
        ({"max_batch_size": 0}, ["max_batch_size = 0", ">= 1"]),
        ({"max_batch_size": True}, ["max_batch_size = True", "integer"]),
        ({"max_batch_size": 2.0}, ["max_batch_size = 2.0", "integer"]),
        ({"max_batch_size": 65_537}, ["max_batch_size = 65537", "<= 65536"]),
        ({"max_batch_size": 2**70}, ["max_batch_size = 1180591620717411303424", "<= 65536"]),
        ({"compile_timeout_s": float("inf")}, ["compile_timeout_s = inf", "<= 86400"]),
        ({"compile_timeout_s": 10**400}, ["compile_timeout_s = 1000", "<= 86400"]),
        ({"compile_timeout_s": True}, ["compile_timeout_s = True"]),
        ({"compile_timeout_s": "3"}, ["compile_timeout_s = '3'"]),
        ({"compile_memory_mb": 63}, ["compile_memory_mb = 63", ">= 64 and <= 1048576"]),
        ({"compile_cache_entries": -1}, ["compile_cache_entries = -1", ">= 0"]),
        ({"compile_cache_mb": 1.5}, ["compile_cache_mb = 1.5", "integer"]),
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
    for hostile in ("max_batch_size = " + "9" * 5_000, "x = " + "[" * 5_000, "x = 0x" + "f" * 5_000):
        with pytest.raises(ConfigError, match=r"^config: "):
            Config.from_toml(hostile)
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_file(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_file(tmp_path / "binary.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.from_file("a\0b")


def test_a_file_is_named_and_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b'\xef\xbb\xbfbackend = "llguidance"\r\n')
    assert Config.from_file(file).backend == "llguidance"
    file.write_text("max_batch_size = 0")
    with pytest.raises(ConfigError, match=r"config\.toml: config: max_batch_size = 0"):
        Config.from_file(file)


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
        {"temperature": 10**400},
        {"temperature": "1"},
        {"temperature": True},
        {"temperature": None},
        {"top_k": 2**31},
        {"top_k": 2**70},
        {"top_k": 1.5},
        {"top_k": True},
        {"top_p": float("nan")},
        {"top_p": "1"},
        {"top_p": True},
        {"min_p": float("nan")},
        {"min_p": False},
        {"seed": 0.5},
        {"seed": "x"},
        {"seed": True},
    ],
)
def test_sampling_parameters_out_of_range_are_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^sampling: {next(iter(values))} = "):
        SamplingParams(**values)


def test_sampling_parameters_at_their_bounds_are_taken() -> None:
    SamplingParams(temperature=1, top_k=2**31 - 1, top_p=1, min_p=0, seed=2**63 - 1)
    assert SamplingParams(0).greedy


def test_there_is_one_list_of_acceptance_methods() -> None:
    for method in get_args(AcceptMethod):
        assert Config(acceptance=method).acceptance == method
        check_acceptance(method, Proposal.SAMPLED)
    with pytest.raises(ConfigError, match=r"^acceptance = 'typical'; expected 'target_only' or 'rejection'$"):
        check_acceptance("typical", Proposal.SAMPLED)


def test_a_single_string_is_no_list_of_choices() -> None:
    with pytest.raises(ConfigError, match="'yes' is one string"):
        GrammarSpec.choice("yes")


def test_wrong_arguments_of_an_engine_are_named() -> None:
    from specgrammar.runtime.engine import Engine

    wrong: Any = "transformers"
    with pytest.raises(ConfigError, match="config is a str"):
        Engine.build(wrong, wrong)
    with pytest.raises(ConfigError, match="'transformers' is no adapter"):
        Engine.build(Config(), wrong)


def test_a_tokenizer_is_no_vocabulary() -> None:
    for name in ("xgrammar", "llguidance"):
        with pytest.raises(ConfigError, match=r"not for a str; specgrammar_transformers\.vocabulary_of"):
            create(BACKENDS, name, "a tokenizer")
