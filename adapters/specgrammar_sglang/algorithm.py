# pyright: reportMissingImports=false
# (sglang is installed where this runs, not where it is checked)
"""Algorithms of ours as speculative algorithms of sglang's (`--speculative-algorithm SPECGRAMMAR_NGRAM`)."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo, get_spec

from specgrammar.cli.options import parse_options
from specgrammar.errors import ConfigError, PluginError
from specgrammar.protocols.spec import SpecAlgorithm
from specgrammar.registry import ALGORITHMS, create, find, option_names
from specgrammar_sglang.engine import WORKER, check_interfaces

OPTIONS = "SPECGRAMMAR_OPTIONS"
"""The environment variable with an algorithm's options, `KEY=VALUE` with spaces between them."""

_MAX_RUNNING_REQUESTS = 48
"""As for all of sglang's speculative algorithms, where the user sets nothing."""


class SglangAlgorithm(CustomSpecAlgo):
    """One registered algorithm.

    To sglang it is an n-gram algorithm: trees come from the host, there is no draft model and no draft KV. So
    sglang relays the committed tokens from step to step, and captures graphs, as for its own NGRAM.
    """

    # What the scheduler reads and `CustomSpecAlgo` lacks in 0.5.23; these ask nothing but the `is_*` below.
    create_future_map = SpeculativeAlgorithm.create_future_map
    need_topk = SpeculativeAlgorithm.need_topk
    carries_draft_hidden_states = SpeculativeAlgorithm.carries_draft_hidden_states
    get_platform_worker_cls = SpeculativeAlgorithm.get_platform_worker_cls

    def is_ngram(self) -> bool:
        """Yes, see the class."""
        return True

    def has_draft_kv(self) -> bool:
        """No: a tree lives in the mask of the verify forward alone."""
        return False

    def supports_grammar_overlap(self) -> bool:
        """Yes: grammars advance under the verify forward, unlike those of sglang's own NGRAM."""
        return True

    @property
    def our_name(self) -> str:
        """The name in the group `specgrammar.algorithms`."""
        return str(self.factory.our_name)

    def make(self, num_nodes: int | None) -> SpecAlgorithm:
        """The algorithm with the options that the user gave.

        Args:
            num_nodes: most nodes of a tree, sglang's `--speculative-num-draft-tokens`; None for the default.

        Raises ConfigError for options that do not fit.
        """
        options = parse_options(os.environ.get(OPTIONS, "").split())
        algorithm: SpecAlgorithm = create(ALGORITHMS, self.our_name, **options)
        if num_nodes in (None, algorithm.topology.max_nodes):
            return algorithm
        if "num_draft_tokens" in option_names(find(ALGORITHMS, self.our_name).load()) - set(options):
            for count in (num_nodes - 1, num_nodes):  # some count the root
                sized: SpecAlgorithm = create(ALGORITHMS, self.our_name, **options, num_draft_tokens=count)
                if sized.topology.max_nodes == num_nodes:
                    return sized
        made = algorithm.topology.max_nodes
        raise ConfigError(
            f"{self.our_name} makes trees of {made} nodes, --speculative-num-draft-tokens is {num_nodes}; "
            f"set that to {made}, or change the options in {OPTIONS}"
        )

    def handle_server_args(self, server_args: Any) -> None:
        """Derive what follows from the algorithm's topology, as sglang does for its own.

        Raises ConfigError for what the algorithm cannot run with.
        """
        if not server_args.device.startswith(("cuda", "cpu")):
            raise ConfigError(f"{self.name} runs on cuda and cpu, not on {server_args.device}")
        if server_args.enable_dp_attention:
            raise ConfigError(f"{self.name} does not run with DP attention, like sglang's NGRAM")
        topology = self.make(server_args.speculative_num_draft_tokens).topology
        if topology.max_depth < 1:
            raise ConfigError(f"{self.name} drafts nothing; leave --speculative-algorithm out")
        is_chain = topology.kind == "chain"
        paged = (server_args.page_size or 1) > 1 and server_args.attention_backend != "flashinfer"
        if paged and not is_chain:
            raise ConfigError(
                f"{self.name} makes trees, which sglang verifies with page_size > 1 on flashinfer alone; set "
                f"--page-size 1, or make chains ({OPTIONS}='breadth=1')"
            )
        server_args.speculative_num_draft_tokens = topology.max_nodes
        server_args.speculative_num_steps = topology.max_depth
        server_args.speculative_eagle_topk = 1 if is_chain else max(2, topology.max_nodes - 1)
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests = _MAX_RUNNING_REQUESTS
        if server_args.device.startswith("cpu"):
            server_args.disable_overlap_schedule = True


class WorkerFactory:
    """What sglang calls for the worker's class, once, at its start."""

    def __init__(self, our_name: str) -> None:
        """For one of our algorithms."""
        self.our_name = our_name

    def __call__(self, server_args: Any) -> type:
        """The worker's class, with what it relies on checked."""
        del server_args
        check_interfaces(WORKER)
        from specgrammar_sglang.worker import SpecGrammarWorker

        return SpecGrammarWorker


def register_algorithm(name: str, our_name: str) -> None:
    """Register an algorithm, once; raises PluginError if sglang's own have members that ours lacks."""
    if get_spec(name) is not None:
        return
    lacking = sorted(
        member
        for member, value in vars(SpeculativeAlgorithm).items()
        if callable(value) and not member.startswith("_") and not hasattr(SglangAlgorithm, member)
    )
    if lacking:
        raise PluginError(f"specgrammar_sglang: sglang's algorithms have members that ours lack: {lacking}")
    SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=SglangAlgorithm)(
        WorkerFactory(our_name)
    )
