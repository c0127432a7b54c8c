# pyright: reportMissingImports=false

"""The plugin in a whole sglang: found by its loader, in its registries, refused where it cannot work."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from specgrammar.errors import ConfigError, PluginError
from specgrammar_sglang import engine
from tests.sglang_adapter.conftest import INSTALLED, NEEDS_SGLANG

if not INSTALLED:
    pytest.skip(NEEDS_SGLANG, allow_module_level=True)

from sglang.srt import plugins
from sglang.srt.constrained import base_grammar_backend
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import GRAMMAR_BACKEND_CHOICES
from sglang.srt.speculative import (
    dflash_worker_v2,
    eagle_worker_common,
    ngram_worker,
    spec_info,
    spec_registry,
    spec_utils,
)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Let sglang load its plugins, as each of its processes does."""
    plugins.load_plugins()


def test_the_loader_finds_and_runs_the_plugin() -> None:
    found = plugins.load_plugins_by_group(plugins.GENERAL_PLUGINS_GROUP)
    assert found["specgrammar"][1] == "specgrammar"
    assert {"specgrammar-xgrammar", "specgrammar-llguidance"} <= set(GRAMMAR_BACKEND_CHOICES)
    assert {"specgrammar-xgrammar", "specgrammar-llguidance"} <= set(
        base_grammar_backend.GRAMMAR_BACKEND_REGISTRY
    )


def test_the_hook_is_around_the_function_wherever_it_was_imported() -> None:
    hooked = spec_utils.build_grammar_vocab_mask
    assert hooked.__wrapped__.__code__.co_filename == spec_utils.__file__
    for worker in (ngram_worker, eagle_worker_common, dflash_worker_v2):
        assert worker.build_grammar_vocab_mask is hooked


def test_running_it_again_changes_nothing() -> None:
    from specgrammar_sglang import plugin

    before = (list(GRAMMAR_BACKEND_CHOICES), {k: len(v) for k, v in HookRegistry._hooks.items()})
    algorithms = dict(spec_registry._REGISTRY)
    plugin()
    HookRegistry.apply_hooks()
    assert before == (list(GRAMMAR_BACKEND_CHOICES), {k: len(v) for k, v in HookRegistry._hooks.items()})
    assert algorithms == spec_registry._REGISTRY


def test_it_runs_in_every_process() -> None:
    code = (
        "import tests.sglang_adapter.conftest; from sglang.srt.plugins import load_plugins; load_plugins(); "
        "load_plugins(); from sglang.srt.speculative.spec_info import SpeculativeAlgorithm; "
        "print(SpeculativeAlgorithm.from_string('specgrammar_ngram'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "SPECGRAMMAR_NGRAM" in done.stdout, done.stderr[-2000:]


# -- Algorithms ------------------------------------------------------------------------------------------------


def algorithm(name: str = "NGRAM") -> Any:
    return spec_info.SpeculativeAlgorithm.from_string(f"SPECGRAMMAR_{name}")


@pytest.mark.parametrize("name", ["NONE", "NGRAM", "CHAIN", "EAGLE"])
def test_algorithms_conform_and_are_found(name: str) -> None:
    found = algorithm(name)
    spec_registry._assert_custom_spec_algo_conforms(type(found))
    assert found.is_some()
    assert found.is_ngram()
    assert found.supports_overlap
    assert found.supports_grammar_overlap()
    assert not found.has_draft_kv()


def test_a_default_algorithm_lacks_what_the_scheduler_reads() -> None:
    """What `CustomSpecAlgo` alone is missing in 0.5.23: the scheduler dies at its start."""
    default = spec_registry.CustomSpecAlgo("DEFAULT", lambda _: object)
    read = ("create_future_map", "need_topk", "carries_draft_hidden_states", "get_platform_worker_cls")
    pool = SimpleNamespace(req_to_token=__import__("torch").zeros(4, 16))
    for name in read:
        assert not hasattr(default, name)
        assert hasattr(algorithm(), name)
    with pytest.raises(AttributeError, match="create_future_map"):
        default.create_future_map("cpu", pool)
    assert isinstance(algorithm().create_future_map("cpu", pool), FutureMap)
    assert algorithm().need_topk() is False
    assert algorithm().carries_draft_hidden_states() is False
    assert algorithm().get_platform_worker_cls() is None


def test_ours_have_every_member_of_theirs() -> None:
    members = {name for name, value in vars(spec_info.SpeculativeAlgorithm).items() if callable(value)}
    lacking = {name for name in members if not name.startswith("_") and not hasattr(algorithm(), name)}
    assert not lacking


def server_args(**changes: Any) -> SimpleNamespace:
    settings = {
        "device": "cuda",
        "enable_dp_attention": False,
        "page_size": None,
        "attention_backend": None,
        "max_running_requests": None,
        "speculative_num_draft_tokens": None,
        "disable_overlap_schedule": False,
    }
    return SimpleNamespace(**(settings | changes))


def test_settings_follow_from_the_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    args = server_args(speculative_num_draft_tokens=12)
    algorithm().handle_server_args(args)
    assert (args.speculative_num_draft_tokens, args.speculative_eagle_topk) == (12, 11)
    assert (args.max_running_requests, args.enable_mixed_chunk) == (48, False)
    assert not args.disable_overlap_schedule
    monkeypatch.setenv("SPECGRAMMAR_OPTIONS", "breadth=1 num_draft_tokens=5")
    args = server_args(device="cpu", page_size=16, max_running_requests=4)
    algorithm().handle_server_args(args)
    assert (args.speculative_num_draft_tokens, args.speculative_eagle_topk) == (6, 1)
    assert (args.max_running_requests, args.disable_overlap_schedule) == (4, True)


@pytest.mark.parametrize(("name", "num_nodes"), [("NGRAM", 5), ("CHAIN", 5), ("EAGLE", 12), ("EAGLE", None)])
def test_trees_have_as_many_nodes_as_sglang_is_told(name: str, num_nodes: int | None) -> None:
    args = server_args(speculative_num_draft_tokens=num_nodes)
    algorithm(name).handle_server_args(args)
    assert args.speculative_num_draft_tokens == (num_nodes or 16)
    assert algorithm(name).make(args.speculative_num_draft_tokens).topology.max_nodes == (num_nodes or 16)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"device": "npu"}, "", "runs on cuda and cpu"),
        ({"enable_dp_attention": True}, "", "DP attention"),
        ({"page_size": 16}, "", "page_size > 1"),
        ({}, "breadht=2", "no option 'breadht'"),
        ({"speculative_num_draft_tokens": 4}, "num_draft_tokens=7", "makes trees of 8 nodes"),
    ],
)
def test_what_cannot_run_is_refused_at_the_start(
    changes: dict[str, Any], options: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECGRAMMAR_OPTIONS", options)
    with pytest.raises(ConfigError, match=message):
        algorithm().handle_server_args(server_args(**changes))


def test_an_algorithm_that_drafts_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="drafts nothing"):
        algorithm("NONE").handle_server_args(server_args())


def test_the_worker_is_made_through_the_registry() -> None:
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker

    made = algorithm().create_worker(server_args())
    assert issubclass(made, BaseSpecWorker)
    assert not made.__abstractmethods__


# -- Versions --------------------------------------------------------------------------------------------------


@pytest.fixture
def unregistered() -> Iterator[None]:
    """The registries without ours, and as they were afterwards."""
    backends, algorithms = base_grammar_backend.GRAMMAR_BACKEND_REGISTRY, spec_registry._REGISTRY
    before = dict(backends), dict(algorithms)
    backends.clear()
    algorithms.clear()
    yield
    backends.clear()
    backends.update(before[0])
    algorithms.clear()
    algorithms.update(before[1])


@pytest.mark.usefixtures("unregistered")
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(engine, "version", lambda _: "0.6.0")
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    with caplog.at_level(logging.ERROR):
        plugins.load_plugins()  # logs what a plugin raises
    assert "sglang 0.6.0 is not supported; supported: 0.5.23" in caplog.text
    message = r"sglang 0\.6\.0 is not supported"
    with pytest.raises(PluginError, match=message):
        base_grammar_backend.GRAMMAR_BACKEND_REGISTRY["specgrammar-xgrammar"](None, None, 1, None)
    with pytest.raises(PluginError, match=message):
        algorithm().validate_server_args(server_args())


def test_a_changed_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(base_grammar_backend.BaseGrammarObject, "rollback")
    monkeypatch.setattr(spec_utils, "build_grammar_vocab_mask", lambda reqs, tree: (reqs, tree))
    with pytest.raises(PluginError) as raised:
        engine.check_interfaces(engine.GRAMMAR + engine.MASK)
    for part in ("BaseGrammarObject has no rollback", "takes no sampling_info, device, barrier", "0.5.23"):
        assert part in str(raised.value)


def test_what_the_adapter_relies_on_is_there() -> None:
    engine.check_version()
    engine.check_interfaces(engine.GRAMMAR + engine.MASK + engine.ALGORITHM + engine.WORKER)
