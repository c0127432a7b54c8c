"""`eagle` in an engine: what it drafts is the head's word, and what comes out is `none`'s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specgrammar.config import Config
from specgrammar.errors import ConfigError
from specgrammar.protocols.drafter import CausalDrafter
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.protocols.spec import DecodeBatch
from specgrammar.protocols.staging import Device
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.eagle.algorithm import EagleAlgorithm
from specgrammar.spec.eagle.checkpoint import load_head, save_head
from specgrammar.spec.eagle.config import LAST, EagleConfig
from specgrammar.spec.eagle.growth import Growth
from specgrammar.spec.eagle.head import EagleHead
from specgrammar.spec.eagle.producer import EagleProducer
from specgrammar.spec.eagle.state import HeadState
from specgrammar.spec.eagle.words import DraftWords
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.delayed_device import DelayedDevice
from specgrammar.testing.toy_target import ToyAdapter, join_in_order
from specgrammar.testing.toys import VOCABULARY
from specgrammar.trees.tree import DraftTree
from specgrammar_transformers import TransformersDrafter, TransformersTarget
from specgrammar_transformers.cached_model import CachedModel
from tests.transformers_adapter.tiny import MAX_LENGTH, VOCAB, tiny_model

LAYERS = (0, 1, LAST)
DEVICES: dict[str, Callable[[], Device]] = {
    "inline": InlineDevice,
    "cpu-stream": CpuStream,
    "late": DelayedDevice,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tree": {"num_steps": 3, "topk": 3, "num_draft_tokens": 9},
    "chain": {"num_steps": 3, "topk": 1, "num_draft_tokens": 4},
    "one level": {"num_steps": 1, "topk": 4, "num_draft_tokens": 5},
}
REQUESTS = [
    Request("json", (2, 3, 4), GrammarSpec.regex("(a|b|1|2)(b|c){2,6}"), max_new_tokens=20),
    Request("free", (5, 1), None, SamplingParams(temperature=1.2, seed=3), max_new_tokens=14),
    Request("short", (7,), GrammarSpec.regex("[abc]*"), SamplingParams(temperature=0.9, seed=4), 3),
    Request("one prompt token", (9,), GrammarSpec.regex("(ab)*c"), max_new_tokens=17),
    Request("stop", (6, 6), None, max_new_tokens=15, stop_strings=("bc",)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for the tiny target."""
    shared = TransformersTarget(tiny_model(), 1).shared
    config = EagleConfig("eagle3", 32, 4, 2, 8, 48, VOCAB, 32, LAYERS, draft_vocab_size=12, feature_norms=True)
    torch.manual_seed(5)
    ids = torch.tensor([0, 1, 2, 3, 5, 8, 9, 11, 12, 14, 15, 16])
    head = EagleHead(config, shared.embedding, shared.output, ids)
    for parameter in head.parameters():
        parameter.data.mul_(3.0)
    save_head(tmp_path_factory.mktemp("head"), head, torch.float32)
    return tmp_path_factory.getbasetemp() / "head0"


class TinyAdapter(ToyAdapter):
    """The tiny model behind the toy vocabulary."""

    def __init__(self, device: Device, max_batch_size: int = 3) -> None:
        super().__init__(TransformersTarget(tiny_model(), max_batch_size, device), VOCABULARY, device)  # type: ignore[arg-type]

    def load_drafter(self, name: str) -> CausalDrafter:
        """There is none."""
        raise AssertionError(name)


def engine_of(device: Device, algorithm: str, **options: Any) -> Engine:
    config = Config(algorithm=algorithm, algorithm_options=options, mask_policy="eager", max_batch_size=3)
    return Engine.build(config, TinyAdapter(device), agree_joins=join_in_order)


def outputs_of(engine: Engine) -> dict[str, RequestOutput]:
    return {output.request_id: output for output in engine.generate(REQUESTS)}


def told(outputs: dict[str, RequestOutput]) -> dict[str, object]:
    return {name: (output.token_ids, output.finish_reason) for name, output in outputs.items()}


@pytest.mark.parametrize("grammar_aware", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", DEVICES)
def test_the_output_is_that_of_none(device: str, shape: str, grammar_aware: bool, folder: Path) -> None:
    right = told(outputs_of(engine_of(InlineDevice(), "none")))
    made = DEVICES[device]()
    engine = engine_of(made, "eagle", head=str(folder), grammar_aware=grammar_aware, **SHAPES[shape])
    assert told(outputs_of(engine)) == right
    assert engine.trace.num_draft_tokens > 50
    overlaps = made.runs_aside and not grammar_aware
    assert (engine.trace.num_overlapped_steps > 0) == overlaps
    assert (engine.trace.num_rejected_by_grammar + engine.trace.num_pruned == 0) == grammar_aware


@pytest.mark.parametrize("budget", [1, 2, "auto"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_budget_changes_neither_the_output_nor_the_shapes(
    device: str, shape: str, budget: int | str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` with nodes that cost as much as they may: from steps that take half as long again for each."""
    right = told(outputs_of(engine_of(InlineDevice(), "none")))
    engine = engine_of(DEVICES[device](), "eagle", head=str(folder), budget=budget, **SHAPES[shape])
    propose, capacity, steps = EagleProducer.propose, SHAPES[shape]["num_draft_tokens"], []
    now = 0.0
    monkeypatch.setattr("specgrammar.spec.step_costs.time.perf_counter", lambda: now)

    def seen(self: EagleProducer, batch: DecodeBatch) -> DraftTree:
        nonlocal now
        tree = propose(self, batch)
        drafts = [view.max_draft_tokens > 0 for view in batch.requests]
        assert np.diff(tree.cu_nodes).tolist() == [capacity if any(drafts) else 1] * len(batch)
        if tree.made is None:
            return tree
        assert isinstance(tree.device.draft_tokens, torch.Tensor)
        tree.made.wait()
        num_kept = int((tree.device.draft_tokens >= 0).sum()) - len(batch)
        now += 1.0 + 0.5 * num_kept
        steps.append((len(batch), num_kept))
        return tree

    monkeypatch.setattr(EagleProducer, "propose", seen)
    assert told(outputs_of(engine)) == right
    assert len(steps) > 15
    if budget == "auto":
        assert any(num_kept == bs * (capacity - 1) for bs, num_kept in steps), "tried"
        assert any(num_kept == 0 for _, num_kept in steps)
    else:
        assert all(num_kept <= int(budget) * bs for bs, num_kept in steps)
        assert any(num_kept == int(budget) * bs for bs, num_kept in steps)


def expected_tree(folder: Path, history: list[int], own: list[int], shape: dict[str, Any]) -> list[int]:
    """Tokens of the tree that the head grows behind a history: everything computed anew."""
    model = tiny_model()
    target = TransformersTarget(model, 1)
    head = load_head(folder, target.shared.embedding, target.shared.output, 2)
    with torch.no_grad():
        hidden = model(torch.tensor([history]), output_hidden_states=True).hidden_states
    features = torch.cat([hidden[layer][0, :-1] for layer in LAYERS], dim=-1)
    k = shape["topk"]
    state = HeadState(head, 1, k * (shape["num_steps"] - 1))
    words = DraftWords(head, VOCABULARY.vocab_size)
    words.put(0, own)
    output = state.extend([0], torch.tensor(history[1:]), features, [len(history) - 1])
    ids, logprobs = words.best([0], output[:, None], k, None)
    growth = Growth(ids[:, 0], logprobs[:, 0])
    outputs = output[:, None].expand(-1, k, -1)
    for _ in range(shape["num_steps"] - 1):
        outputs = state.expand([0], growth.frontier_tokens, outputs, growth.ancestors)
        growth.grow(*words.best([0], outputs, k, None))
        outputs = outputs.gather(1, growth.above[:, :, None].expand(-1, -1, outputs.shape[2]))
    tokens: list[int] = growth.build(torch.tensor(history[-1:]), shape["num_draft_tokens"]).tokens[0].tolist()
    return tokens


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_every_tree_is_what_the_head_grows_behind_the_whole_history(
    shape: str, device: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through accepted drafts of any length, requests that join and leave, and steps that are not resolved."""
    engine = engine_of(DEVICES[device](), "eagle", head=str(folder), **SHAPES[shape])
    propose, proposed = EagleProducer.propose, []

    def seen(self: EagleProducer, batch: DecodeBatch) -> DraftTree:
        tree = propose(self, batch)
        proposed.append((batch, tree))
        return tree

    monkeypatch.setattr(EagleProducer, "propose", seen)
    outputs = outputs_of(engine)
    prompts = {request.request_id: list(request.prompt_tokens) for request in REQUESTS}
    num_checked = 0
    for batch, tree in proposed:
        if tree.host is not None:
            continue  # nobody needs a draft
        assert isinstance(tree.device.draft_tokens, torch.Tensor)
        nodes = tree.device.draft_tokens.view(len(batch), -1).tolist()
        for view, found in zip(batch.requests, nodes, strict=True):
            prompt = prompts[view.request_id]
            whole = [*prompt, *outputs[view.request_id].token_ids]
            lengths = [n for n in range(view.num_tokens, len(whole) + 1) if whole[n - 1] == found[0]]
            if view.max_draft_tokens < 3 or not lengths or lengths[0] < 2:
                continue  # cut short, over already, or nothing is known of a lone prompt token
            trees = [expected_tree(folder, whole[:n], prompt, SHAPES[shape]) for n in lengths[:4]]
            assert found in trees
            num_checked += 1
    assert num_checked > 15


def test_a_request_whose_features_were_lost_gets_no_drafts_and_the_right_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that failed behind the taking of features cannot take them again."""
    right = told(outputs_of(engine_of(InlineDevice(), "none")))
    engine = engine_of(InlineDevice(), "eagle", head=str(folder), **SHAPES["tree"])
    extend, num_calls = HeadState.extend, 0

    def failing(self: HeadState, *arguments: Any) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 4:
            raise MemoryError("no room")
        return extend(self, *arguments)

    monkeypatch.setattr(HeadState, "extend", failing)
    for request in REQUESTS:
        engine.add(request)
    outputs, num_raised = [], 0
    while engine.has_work:
        try:
            outputs += engine.step()
        except MemoryError:
            num_raised += 1
    assert num_raised == 1
    assert told({output.request_id: output for output in outputs}) == right


def test_a_preempted_request_is_read_anew(folder: Path) -> None:
    right = told(outputs_of(engine_of(InlineDevice(), "none")))
    engine = engine_of(CpuStream(), "eagle", head=str(folder), **SHAPES["tree"])
    for request in REQUESTS[:2]:
        engine.add(request)
    outputs: list[RequestOutput] = []
    for _ in range(3):
        outputs += engine.step()
    engine.preempt("free")
    outputs += engine.step()
    engine.resume("free")
    outputs += engine.generate([])
    found = told({output.request_id: output for output in outputs})
    assert found == {name: right[name] for name in ("json", "free")}
    assert not any(one.is_lost for one in engine.producer._requests.values())  # type: ignore[attr-defined]


class Once:
    """Raises at one of its calls, and else does what it stands for."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function, self.left = function, number

    def __get__(self, instance: object, owner: object) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise MemoryError("once")
            return self.function(instance, *arguments, **options)

        return call


def through(engine: Engine) -> tuple[dict[str, object], int]:
    """What comes out, and how many steps raised."""
    for request in REQUESTS:
        engine.add(request)
    outputs, num_raised = [], 0
    while engine.has_work:
        try:
            outputs += engine.step()
        except MemoryError:
            num_raised += 1
            assert num_raised < 5
    return told({output.request_id: output for output in outputs}), num_raised


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(HeadState, "expand"), (DraftWords, "put"), (CachedModel, "_logits"), (TransformersTarget, "verify")],
)
def test_what_fails_once_fails_a_step_and_nothing_behind_it(
    owner: type, name: str, device: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the head's work, in the forward, or on the host between a draft and its launch; drafts go on."""
    engine = engine_of(DEVICES[device](), "eagle", head=str(folder), **SHAPES["tree"])
    monkeypatch.setattr(owner, name, Once(getattr(owner, name), 3))
    outputs, num_raised = through(engine)
    assert num_raised >= 1
    assert outputs == told(outputs_of(engine_of(InlineDevice(), "none")))
    producer = engine.producer
    assert isinstance(producer, EagleProducer)
    if owner is TransformersTarget:
        assert engine.trace.num_draft_tokens > 150
        assert not any(one.is_lost for one in producer._requests.values())


@pytest.mark.parametrize("device", DEVICES)
def test_a_draft_model_goes_on_behind_a_failed_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = DEVICES[device]()
    adapter = TinyAdapter(made)
    drafter = TransformersDrafter(tiny_model(seed=1), VOCABULARY.vocab_size, 3, made)
    adapter.load_drafter = lambda name: drafter  # type: ignore[method-assign]  # noqa: ARG005  # it has none of its own
    options = {"drafter": "tiny", "num_draft_tokens": 3}
    config = Config(algorithm="chain", algorithm_options=options, mask_policy="eager", max_batch_size=3)
    engine = Engine.build(config, adapter, agree_joins=join_in_order)
    monkeypatch.setattr(CachedModel, "_logits", Once(CachedModel._logits, 9))
    outputs, num_raised = through(engine)
    assert num_raised >= 1
    assert outputs == told(outputs_of(engine_of(InlineDevice(), "none")))


@pytest.mark.parametrize("device", DEVICES)
def test_a_request_may_fill_the_context(device: str, folder: Path) -> None:
    """Trees have more nodes than a path is deep, and a step in flight may commit as many as that is."""
    requests = [
        Request(str(n), (2, 3, 4) * 199, max_new_tokens=MAX_LENGTH - 3 * 199 - n, stop_token_ids=())
        for n in range(3)
    ]
    runs = []
    for algorithm, options in (("none", {}), ("eagle", {"head": str(folder), **SHAPES["tree"]})):
        engine = engine_of(DEVICES[device](), algorithm, **options)
        runs.append(told({output.request_id: output for output in engine.generate(requests)}))
    assert runs[0] == runs[1]


def test_what_a_row_leaves_behind_reaches_nobody(folder: Path) -> None:
    shared = TransformersTarget(tiny_model(), 1).shared
    state = HeadState(load_head(folder, shared.embedding, shared.output, 2), 1, 0)
    tokens, features = torch.tensor([1, 2, 3]), torch.rand(3, 96)
    right = state.extend([0], tokens, features, [3])
    state.clear(0)
    assert state.extend([0], tokens, torch.full((3, 96), torch.nan), [3]).isnan().all()
    state.clear(0)
    assert torch.equal(state.extend([0], tokens, features, [3]), right)


def test_ids_that_are_no_tokens_are_not_drafted(folder: Path) -> None:
    """A head for a model with padded embeddings may know more ids than the tokenizer."""
    shared = TransformersTarget(tiny_model(), 1).shared
    words = DraftWords(load_head(folder, shared.embedding, shared.output, 2), vocab_size=9)
    words.put(0, [4])
    ids, logprobs = words.best([0], torch.rand(1, 1, 32), 7, None)
    assert sorted(ids[0, 0, logprobs[0, 0] > -torch.inf].tolist()) == [0, 1, 2, 3, 4, 5, 8]
    with pytest.raises(ConfigError, match="topk = 13; expected at most 12"):
        engine_of(InlineDevice(), "eagle", head=str(folder), topk=13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 0}, "eagle: num_steps = 0"),
        ({"topk": 0}, "eagle: topk = 0"),
        ({"num_draft_tokens": 1}, "eagle: num_draft_tokens = 1"),
        ({"num_draft_tokens": 54}, "num_draft_tokens = 54; expected an integer >= 2 and <= 53"),
        ({"topk": 1, "num_draft_tokens": 6}, "num_draft_tokens = 6; expected an integer >= 2 and <= 5"),
        ({"grammar_aware": 1.5}, "eagle: grammar_aware = 1.5"),
        ({"head": ""}, "eagle: head = ''"),
    ],
)
def test_options_that_fit_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EagleAlgorithm(**options)


def test_what_cannot_work_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="head = 'no such folder'; expected a folder"):
        engine_of(InlineDevice(), "eagle", head="no such folder")
    with pytest.raises(ConfigError, match="the target gives no features"):
        Engine.build(Config(algorithm="eagle"), ToyAdapter())


def test_it_is_found_as_a_plugin_and_says_what_it_reads() -> None:
    algorithm = create(ALGORITHMS, "eagle", topk=1, num_draft_tokens=5)
    assert algorithm == EagleAlgorithm(topk=1, num_draft_tokens=5)
    assert algorithm.topology.kind == "chain"
    assert EagleAlgorithm().topology.kind == "tree"
    assert (EagleAlgorithm().topology.max_nodes, EagleAlgorithm().topology.max_depth) == (16, 4)
    assert EagleAlgorithm().supports_grammar_overlap()
    assert not EagleAlgorithm(grammar_aware=True).supports_grammar_overlap()
