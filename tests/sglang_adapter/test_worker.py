# pyright: reportMissingImports=false

"""The registered worker on sglang's V2 interface: what it decodes is what our own step decodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from specgrammar.config import Config
from specgrammar.errors import ConfigError, StaleStepError
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus, Vocabulary
from specgrammar.protocols.spec import Commit, DecodeBatch, Needs, TreeProducer
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request
from specgrammar.trees.tree import DraftTree, HostTree
from tests.sglang_adapter.conftest import INSTALLED, NEEDS_SGLANG

if not INSTALLED:
    pytest.skip(NEEDS_SGLANG, allow_module_level=True)

from sglang.kernels.ops.speculative import cache_locs, spec_tree
from sglang.srt.constrained.base_grammar_backend import create_grammar_backend
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specgrammar_transformers import TransformersAdapter
from tests.sglang_adapter.decoding import Loop, Req, TargetWorker

pytestmark = pytest.mark.model

Outputs = dict[str, tuple[int, ...]]
Made = tuple[Any, TargetWorker, list[Req]]
NUM_NODES = 6
CAPACITY = 2
MAX_NEW_TOKENS = 64
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 5},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "colors", "size"],
    "additionalProperties": False,
}
TOY = GrammarSpec.json_schema(SCHEMA, whitespace="flexible")
PROMPTS: list[tuple[str, GrammarSpec | None]] = [
    (
        "Describe a toy as JSON with name, colors and size.",
        GrammarSpec.json_schema(SCHEMA, whitespace="flexible"),
    ),
    ("Repeat: red green blue red green blue red green blue.", None),
    ("Count from 1 to 20, separated by commas.", GrammarSpec.regex("[0-9]+(, [0-9]+){8,12}")),
    ("List three animals as JSON.", GrammarSpec.json_object(whitespace="flexible")),
    ("Write a poem about the sea.", None),
    ("Is water wet? Explain.", GrammarSpec.regex("(yes|no), because [a-z ,]{40,120}[.]")),
    (
        "Describe a car as JSON with name, colors and size.",
        GrammarSpec.json_schema(SCHEMA, whitespace="flexible"),
    ),
    ("Name the seven days of the week.", GrammarSpec.regex("[A-Z][a-z]+day(, [A-Z][a-z]+day){6}")),
    ("Describe a house as JSON.", GrammarSpec.json_object(whitespace="flexible")),
    ("Tell me about the moon.", None),
    ("What is a verb? Give examples.", None),
    ("Who wrote Hamlet? Tell me about the author.", None),
]


@pytest.fixture(scope="module")
def adapter() -> TransformersAdapter:
    load_plugins()
    return TransformersAdapter.load(device="cpu", dtype="float32", max_batch_size=CAPACITY)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Triton kernels, which the interpreter runs on a CPU, are those that it takes for Intel's GPUs."""
    for module in (cache_locs, spec_tree):
        monkeypatch.setattr(module, "_is_xpu", True)


@pytest.fixture(autouse=True)
def server_args(adapter: TransformersAdapter) -> Iterator[Any]:
    del adapter  # made before, so that the plugin is loaded
    with get_context().override_server_args(
        grammar_backend="specgrammar-xgrammar",
        speculative_algorithm="SPECGRAMMAR_NGRAM",
        speculative_num_draft_tokens=NUM_NODES,
        speculative_num_steps=NUM_NODES - 1,
        speculative_eagle_topk=2,
        device="cpu",
    ) as settings:
        yield settings


@pytest.fixture(scope="module")
def expected(adapter: TransformersAdapter) -> Outputs:
    """What our own engine decodes."""
    options = {"num_draft_tokens": NUM_NODES - 1}
    engine = Engine.build(
        Config(algorithm="ngram", algorithm_options=options, max_batch_size=CAPACITY), adapter
    )
    outputs = engine.generate(
        [
            Request(str(i), tuple(adapter.encode_prompt(text)), spec, max_new_tokens=MAX_NEW_TOKENS)
            for i, (text, spec) in enumerate(PROMPTS)
        ]
    )
    return {output.request_id: output.token_ids for output in outputs}


def algorithm() -> Any:
    return SpeculativeAlgorithm.from_string("SPECGRAMMAR_NGRAM")


@pytest.fixture(scope="module")
def grammars(adapter: TransformersAdapter) -> list[Any]:
    """Each prompt's grammar as sglang's grammar backend made it; requests get copies."""
    size, stops = adapter.target.vocab_size, set(adapter.vocabulary.stop_ids)
    with get_context().override_server_args(grammar_backend="specgrammar-xgrammar"):
        backend = create_grammar_backend(None, adapter.tokenizer, size, stops)
    found = []
    for _, spec in PROMPTS:
        kind = "json" if spec is not None and spec.kind.startswith("json") else "regex"
        source = spec.source or "$$ANY$$" if spec is not None else ""
        value, _ = backend.get_cached_or_future_value((kind, source), False)
        found.append(value.result() if spec is not None else None)
    return found


@pytest.fixture
def made(adapter: TransformersAdapter, server_args: Any, grammars: list[Any]) -> Made:
    """A worker made as sglang's scheduler makes it, its target, and a request for each prompt."""
    target = TargetWorker(adapter, CAPACITY)
    worker = algorithm().create_worker(server_args)(server_args, gpu_id=0, nccl_port=0, target_worker=target)
    worker.alloc_memory_pool()
    requests = [
        Req(str(i), adapter.encode_prompt(text), grammar and grammar.copy(), MAX_NEW_TOKENS)
        for i, ((text, _), grammar) in enumerate(zip(PROMPTS, grammars, strict=True))
    ]
    return worker, target, requests


def outputs(requests: list[Any]) -> Outputs:
    return {req.rid: tuple(req.output_ids) for req in requests}


@pytest.mark.parametrize(("overlap", "num_requests", "num_steps"), [(True, len(PROMPTS), 200), (False, 3, 40)])
def test_it_decodes_what_our_own_step_decodes(
    made: Made,
    expected: Outputs,
    overlap: bool,
    num_requests: int,
    num_steps: int,
) -> None:
    worker, target, requests = made
    loop = Loop(worker, target, algorithm(), capacity=CAPACITY, overlap=overlap)
    loop.run(requests[:num_requests])
    assert outputs(requests[:num_requests]) == {rid: expected[rid] for rid in map(str, range(num_requests))}
    assert loop.num_steps >= num_steps
    if not overlap:
        return
    # Under every forward the grammars move first; then the path is kept, and the lengths are published.
    steps = " ".join(target.log).split("forward ")[1:]
    assert {step.strip() for step in steps} == {"publish", "keep publish", "barrier keep publish"}


class ReadsGrammars:
    """The producer of a worker, asked as one that reads grammars."""

    needs: Needs = "grammar"

    def __init__(self, producer: TreeProducer, vocabulary: Vocabulary, log: list[str]) -> None:
        self._producer, self._vocabulary, self._log = producer, vocabulary, log
        self.num_read = 0
        self.observed: list[Commit] = []

    def propose(self, batch: DecodeBatch) -> DraftTree:
        self._log.append("propose")
        for view in batch.requests:
            if view.grammar is not None:
                rows = np.zeros((1, self._vocabulary.num_words), np.int32)
                status = view.grammar.fill(HostTree.roots([view.tokens[-1]]), rows)
                assert status.tolist() == [NodeStatus.LIVE]
                assert 0 < np.bitwise_count(rows.view(np.uint32)).sum() < self._vocabulary.vocab_size
                self.num_read += 1
        return self._producer.propose(batch)

    def observe(self, commits: Sequence[Commit]) -> None:
        self.observed += commits
        self._producer.observe(commits)


def test_a_producer_that_reads_grammars_finds_them_moved(
    made: Made, adapter: TransformersAdapter, expected: Outputs
) -> None:
    worker, target, requests = made
    worker.producer = reader = ReadsGrammars(worker.producer, adapter.vocabulary, target.log)
    for req in requests[2:4]:
        req.sampling_params.max_new_tokens = 12
    Loop(worker, target, algorithm(), capacity=CAPACITY, overlap=True).run(requests[2:4])
    assert outputs(requests[2:4]) == {rid: expected[rid][:12] for rid in "23"}
    assert reader.num_read
    decoding = " ".join(target.log).split("barrier propose forward ")
    assert len(decoding) > 1, "the grammars move before the draft"
    for req in requests[2:4]:
        told = [commit for commit in reader.observed if commit.request_id == req.rid]
        tokens = [token for commit in told for token in commit.tokens]
        assert tokens[: len(req.output_ids) - 1] == req.output_ids[1 : 1 + len(tokens)]
        assert all(len(commit.tokens) == commit.num_accepted + 1 for commit in told if not commit.finished)


def test_requests_that_left_are_over_for_the_producer(made: Made, adapter: TransformersAdapter) -> None:
    worker, target, requests = made
    worker.producer = reader = ReadsGrammars(worker.producer, adapter.vocabulary, target.log)
    for req in requests[:2]:
        req.sampling_params.max_new_tokens = 4
    requests[1].sampling_params.max_new_tokens = 12
    Loop(worker, target, algorithm(), capacity=CAPACITY, overlap=False).run(requests[:2])
    worker.clear_cache_pool()
    assert [commit.request_id for commit in reader.observed if commit.finished] == ["0", "1"]


def test_trees_that_a_device_made_are_refused(made: Made, adapter: TransformersAdapter) -> None:
    worker, target, requests = made

    class OnDevice(ReadsGrammars):
        needs: Needs = "history"

        def propose(self, batch: DecodeBatch) -> DraftTree:
            return DraftTree(batch.step, np.arange(1 + len(batch)))

    worker.producer = OnDevice(worker.producer, adapter.vocabulary, target.log)
    with pytest.raises(StaleStepError, match="made on a device"):
        Loop(worker, target, algorithm(), capacity=CAPACITY, overlap=False).run(requests[:1])
    target.forget("0")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [("EAGLE", "", "the target gives no features"), ("CHAIN", "drafter=a-model", "loads none")],
)
def test_producers_that_need_a_model_beside_the_target_are_refused_at_the_start(
    adapter: TransformersAdapter, monkeypatch: pytest.MonkeyPatch, name: str, options: str, message: str
) -> None:
    monkeypatch.setenv("SPECGRAMMAR_OPTIONS", options)
    chosen: Any = SpeculativeAlgorithm.from_string(f"SPECGRAMMAR_{name}")
    num_nodes = chosen.make(None).topology.max_nodes
    with get_context().override_server_args(
        speculative_algorithm=chosen.name, speculative_num_draft_tokens=num_nodes, device="cpu"
    ) as settings:
        worker = chosen.create_worker(settings)(settings, 0, 0, TargetWorker(adapter, CAPACITY))
        with pytest.raises(ConfigError, match=message):
            worker.alloc_memory_pool()
