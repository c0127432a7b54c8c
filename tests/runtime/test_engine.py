"""The engine on a toy target whose cache must always be the committed history."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.errors import ConfigError, PluginError, TreeError
from specgrammar.protocols.grammar import BackendFacts, GrammarSpec
from specgrammar.protocols.spec import DecodeBatch, Needs
from specgrammar.registry import ALGORITHMS, create
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.toy_target import ToyAdapter, ToyTarget, toy_engine, toy_logits
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY
from specgrammar.trees.tree import DraftTree, HostTree
from tests.toys import BACKEND_NAMES, backend, legal_ids, matcher

ALGORITHM_CONFIGS: tuple[dict[str, Any], ...] = (
    {"algorithm": "none"},
    {"algorithm": "ngram", "algorithm_options": {"num_draft_tokens": 6, "min_match": 1}},
    {"algorithm": "ngram", "algorithm_options": {"num_draft_tokens": 9, "breadth": 1, "min_match": 1}},
    {"algorithm": "chain", "algorithm_options": {"num_draft_tokens": 3, "min_match": 1}},
)
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(1.0),
    SamplingParams(0.7, top_k=4),
    SamplingParams(1.3, top_p=0.8),
    SamplingParams(1.0, min_p=0.1),
)
SPECS = (None, *GRAMMARS, GrammarSpec.regex("(ab|bc|c){3,40}"))


def decoded(requests: list[Request], **config: Any) -> dict[str, RequestOutput]:
    engine, target = toy_engine(**config)
    outputs = {output.request_id: output for output in engine.generate(requests)}
    assert target.cache == {}, "a finished request leaves nothing behind"
    assert not engine.has_work
    return outputs


def plain_decoding(request: Request) -> list[int]:
    """Ordinary masked greedy decoding, written out."""
    tokens, output = list(request.prompt_tokens), list[int]()
    state = None if request.grammar is None else matcher("xgrammar", request.grammar)
    while len(output) < request.max_new_tokens:
        logits = toy_logits(tokens)[: VOCABULARY.vocab_size]
        if state is not None:
            legal = legal_ids(state)
            logits = torch.tensor([x if i in legal else -torch.inf for i, x in enumerate(logits.tolist())])
        token = int(logits.argmax())
        output.append(token)
        tokens.append(token)
        if state is not None:
            assert state.accept(token)
        if token == STOP:
            break
    return output


request_lists = st.lists(
    st.builds(
        lambda prompt, spec, sampling, limit, seed: Request(
            "?", tuple(prompt), spec, dataclasses.replace(sampling, seed=seed), limit
        ),
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.sampled_from(SPECS),
        st.sampled_from(SAMPLINGS),
        st.integers(1, 30),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=5,
).map(lambda requests: [dataclasses.replace(r, request_id=str(i)) for i, r in enumerate(requests)])


@settings(max_examples=40)
@given(request_lists, st.integers(1, 4), st.sampled_from(BACKEND_NAMES))
def test_invariant_11_every_algorithm_gives_the_same_tokens(
    requests: list[Request], size: int, name: str
) -> None:
    """Greedy and sampled, with one seed: whatever the algorithm, the batch size and the backend."""
    plain = decoded(requests, backend="xgrammar", max_batch_size=1)
    for request in requests:
        if request.sampling.greedy:
            assert list(plain[request.request_id].token_ids) == plain_decoding(request)
    for config in ALGORITHM_CONFIGS:
        outputs = decoded(requests, backend=name, max_batch_size=size, **config)
        for request_id, output in outputs.items():
            expected = plain[request_id]
            assert (output.token_ids, output.finish_reason) == (expected.token_ids, expected.finish_reason)


def test_speculation_saves_steps_on_repetitive_text() -> None:
    requests = [Request("a", (0, 1) * 4, GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)]
    plain, ngram = decoded(requests)["a"], decoded(requests, algorithm="ngram")["a"]
    assert plain.token_ids == ngram.token_ids
    assert plain.mean_accept_length == 1.0
    assert ngram.mean_accept_length > 1.5


@pytest.mark.parametrize("algorithm", ["none", "ngram"])
def test_logprobs_are_those_of_ordinary_decoding(algorithm: str) -> None:
    spec = GrammarSpec.regex("[abc12]{6,40}")
    request = Request("a", (0, 1) * 4, spec, SamplingParams(0.9, seed=3), 20, logprobs=True)
    output = decoded([request], algorithm=algorithm)["a"]
    state, tokens = matcher("xgrammar", spec), list(request.prompt_tokens)
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) > 3
    for token, logprob in zip(output.token_ids, output.logprobs, strict=True):
        legal = torch.tensor(legal_ids(state))
        row = toy_logits(tokens)[legal].log_softmax(0)
        assert logprob == pytest.approx(float(row[legal.tolist().index(token)]), abs=1e-5)
        state.accept(token)
        tokens.append(token)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_invariant_9_one_requests_failure_ends_that_request(name: str) -> None:
    good = Request("good", (0,), GRAMMARS[0], max_new_tokens=12)
    bad = [
        Request("schema", (0,), GrammarSpec.json_schema("{"), max_new_tokens=4),
        Request("regex", (0,), GrammarSpec.regex("a("), max_new_tokens=4),
        Request("stuck", (0,), GrammarSpec.regex("az"), max_new_tokens=4),
        Request("prompt", (), GRAMMARS[0]),
        Request("ids", (VOCABULARY.vocab_size,), GRAMMARS[0]),
        Request("negative", (0, -1), GRAMMARS[0]),
    ]
    alone = decoded([good], backend=name)["good"]
    outputs = decoded([*bad[:3], good, *bad[3:]], backend=name, algorithm="ngram")
    assert outputs.pop("good").token_ids == alone.token_ids
    assert {output.finish_reason for output in outputs.values()} == {"error"}
    assert len(outputs) == len(bad)
    assert all(output.error for output in outputs.values())
    assert "prompt is empty" in str(outputs["prompt"].error)
    assert f"id {VOCABULARY.vocab_size}" in str(outputs["ids"].error)
    assert outputs["stuck"].token_ids == (0,), "what was legal until then is kept"


def test_invariant_9_logits_that_are_not_numbers_end_the_request() -> None:
    engine, target = toy_engine(algorithm="ngram")
    verify = target.verify

    def broken(batch: DecodeBatch, tree: DraftTree) -> Any:
        ready = verify(batch, tree)
        for b, request in enumerate(batch.requests):
            if request.request_id == "nan" and len(request.tokens) > 4:
                ready.logits[int(tree.cu_nodes[b]) : int(tree.cu_nodes[b + 1])] = torch.nan
        return ready

    target.verify = broken  # type: ignore[method-assign]  # the planted fault
    requests = [Request(name, (0, 1, 2), GRAMMARS[3], max_new_tokens=20) for name in ("nan", "well")]
    outputs = {output.request_id: output for output in engine.generate(requests)}
    assert outputs["nan"].finish_reason == "error"
    assert "-inf or NaN" in str(outputs["nan"].error)
    assert outputs["well"].finish_reason in ("stop", "length")


@pytest.mark.parametrize("fault", ["step", "root", "size"])
def test_invariant_7_a_stale_draft_is_dropped(fault: str) -> None:
    """The producer keeps returning what it made for the first step."""
    request = Request("a", (0, 1) * 3, GRAMMARS[3], max_new_tokens=15)
    expected = decoded([request])["a"]
    engine, _ = toy_engine(algorithm="ngram")
    producer = engine._parts.producer
    propose = producer.propose
    first: list[DraftTree] = []

    def stale(batch: DecodeBatch) -> DraftTree:
        first.append(propose(batch))
        made = first[0]
        if fault == "size":
            two = HostTree.from_chains([[0, 1], [0, 1]])
            return DraftTree(batch.step, two.cu_nodes, two)
        return dataclasses.replace(made, step=batch.step) if fault == "root" else made

    producer.propose = stale  # type: ignore[method-assign]  # the planted fault
    (output,) = engine.generate([request])
    assert output.token_ids == expected.token_ids
    assert engine.trace.num_stale_drafts > 0


def test_a_grammar_that_starts_behind_a_marker() -> None:
    free = Request("a", (1, 2), None, max_new_tokens=12)
    text = decoded([free])["a"].token_ids
    assert STOP not in text[:4]
    marker = text[1:3]
    gated = dataclasses.replace(free, grammar=GRAMMARS[0], grammar_start=marker)
    for config in ALGORITHM_CONFIGS:
        output = decoded([gated], **config)["a"]
        assert output.token_ids[:3] == text[:3]
        assert output.grammar_engaged
        assert re.fullmatch("(ab)+c?|(ab)*a?", VOCABULARY.text(output.token_ids[3:]).decode())
    never = dataclasses.replace(gated, grammar_start=(STOP - 1, STOP - 1, STOP - 1))
    assert decoded([never])["a"].token_ids == text
    assert not decoded([never])["a"].grammar_engaged


def test_stop_strings_and_stop_ids_end_inside_an_accepted_path() -> None:
    request = Request("a", (0, 1) * 4, GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)
    for config in ALGORITHM_CONFIGS:
        cut = decoded([dataclasses.replace(request, stop_strings=("abababa",))], **config)["a"]
        assert (cut.text, cut.finish_reason) == ("", "stop_string")
        whole = decoded([request], **config)["a"]
        by_id = decoded([dataclasses.replace(request, stop_token_ids=(whole.token_ids[5],))], **config)["a"]
        end = whole.token_ids.index(whole.token_ids[5]) + 1
        assert (by_id.token_ids, by_id.finish_reason) == (whole.token_ids[:end], "stop")


@pytest.mark.parametrize("algorithm", ["none", "ngram"])
def test_the_end_of_the_context_is_an_ordinary_limit(algorithm: str) -> None:
    request = Request("a", (0, 1) * 4, GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)
    engine, _ = toy_engine(algorithm=algorithm, max_length=15)
    (output,) = engine.generate([request])
    assert (len(output.token_ids), output.finish_reason) == (8, "length"), "the last token is never cached"


def test_abort_running_and_waiting() -> None:
    engine, target = toy_engine(max_batch_size=1)
    for name in ("running", "waiting"):
        engine.add(Request(name, (0,), GRAMMARS[3], max_new_tokens=50))
    engine.step()
    engine.abort("running")
    engine.abort("waiting")
    engine.abort("unknown")
    outputs = [output for _ in range(3) for output in engine.step()]
    assert {output.request_id: output.finish_reason for output in outputs} == {
        "running": "abort",
        "waiting": "abort",
    }
    assert target.cache == {}


def test_an_id_in_flight_is_refused_and_may_be_used_again_later() -> None:
    engine, _ = toy_engine()
    for _ in range(2):
        engine.add(Request("a", (0,), GRAMMARS[0], max_new_tokens=4))
    outputs = list(engine.generate([]))
    assert sorted(output.finish_reason for output in outputs)[0] == "error"
    (again,) = engine.generate([Request("a", (0,), GRAMMARS[0], max_new_tokens=4)])
    assert again.finish_reason != "error"


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"algorithm": "ngram", "acceptance": "rejection"}, ConfigError, "rejection"),
        ({"algorithm": "eagel"}, PluginError, "no algorithm is called 'eagel'"),
        ({"backend": "outlines2"}, PluginError, "no backend is called"),
        ({"algorithm": "ngram", "algorithm_options": {"num_draft_tokens": 0}}, ConfigError, "num_draft_tokens"),
        ({"algorithm": "ngram", "algorithm_options": {"dept": 3}}, ConfigError, "no option 'dept'"),
        ({"algorithm": "none", "algorithm_options": {"depth": 3}}, ConfigError, "no option 'depth'"),
    ],
)
def test_invariant_10_what_cannot_work_is_refused_when_it_is_configured(
    config: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        toy_engine(**config)


class ShortRollback:
    """A backend that can undo two tokens."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.facts = BackendFacts(2, True, frozenset(), frozenset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_invariant_10_a_tree_deeper_than_the_rollback_is_refused() -> None:
    deep, shallow = (create(ALGORITHMS, "chain", num_draft_tokens=n) for n in (3, 2))
    short: Any = ShortRollback(backend("xgrammar"))
    Engine(ToyAdapter(), short, shallow, Config(mask_policy="eager"))
    with pytest.raises(ConfigError, match=r"policy 'lazy' needs 3"):
        Engine(ToyAdapter(), short, shallow, Config(mask_policy="lazy"))
    with pytest.raises(ConfigError, match=r"can undo 2 tokens, but .* drafts 3 deep"):
        Engine(ToyAdapter(), short, deep, Config())


@settings(max_examples=15)
@given(request_lists, st.integers(1, 3))
def test_invariant_13_replicas_decide_alike_whatever_their_clocks(requests: list[Request], size: int) -> None:
    """Two engines fed the same requests, one with a clock that runs backwards: the same trees, step by step."""
    shapes: list[list[tuple[int, list[int], list[int]]]] = []
    tokens = []
    for replica in range(2):
        engine, _ = toy_engine(algorithm="ngram", max_batch_size=size)
        seen: list[tuple[int, list[int], list[int]]] = []
        propose = engine._parts.producer.propose

        def spying(batch: DecodeBatch, propose: Any = propose, seen: Any = seen) -> DraftTree:
            tree: DraftTree = propose(batch)
            assert tree.host is not None
            seen.append((tree.step, tree.cu_nodes.tolist(), tree.host.draft_tokens.tolist()))
            return tree

        engine._parts.producer.propose = spying  # type: ignore[method-assign]  # a spy
        ticks = iter(range(10**9, 0, -1)) if replica else iter(range(10**9))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.perf_counter", lambda ticks=ticks: float(next(ticks)))
            outputs = {output.request_id: output.token_ids for output in engine.generate(requests)}
        shapes.append(seen)
        tokens.append(outputs)
    assert shapes[0] == shapes[1]
    assert tokens[0] == tokens[1]


def test_a_step_that_fails_gives_its_memory_back() -> None:
    """A device error in one step is the caller's to handle; the engine is as good as before afterwards."""
    engine, target = toy_engine(algorithm="ngram")
    engine.add(Request("a", (0, 1), GRAMMARS[3], max_new_tokens=30))
    verify = target.verify
    failing = [True] * 5

    def broken(batch: DecodeBatch, tree: DraftTree) -> Any:
        ready = verify(batch, tree)
        if failing:
            failing.pop()
            ready.value = ready.wait = _device_error  # type: ignore[method-assign]  # the planted fault
        return ready

    target.verify = broken  # type: ignore[method-assign]  # the planted fault
    for _ in range(5):
        with pytest.raises(RuntimeError, match="device error"):
            engine.step()
    (output,) = engine.generate([])
    assert output.token_ids == decoded([Request("a", (0, 1), GRAMMARS[3], max_new_tokens=30)])["a"].token_ids


def _device_error() -> Any:
    raise RuntimeError("device error")


@pytest.mark.parametrize("bad", [VOCABULARY.vocab_size, 10**6, -2])
def test_drafts_that_are_no_tokens_never_reach_the_model(bad: int) -> None:
    engine, target = toy_engine(algorithm="ngram")
    engine.add(Request("a", (0, 1), max_new_tokens=9))

    def broken(batch: DecodeBatch) -> DraftTree:
        roots = [request.tokens[-1] for request in batch.requests]
        return DraftTree.from_host(batch.step, HostTree.from_chains([[root, bad] for root in roots]))

    engine._parts.producer.propose = broken  # type: ignore[method-assign]  # the planted fault
    with pytest.raises(TreeError, match=rf"request 0 \(a\), node 1|node 1.*{bad}"):
        engine.step()
    assert target.num_forwards == 0


def test_the_trace_counts_every_draft_once() -> None:
    """One step by hand: 5 drafts, one illegal with one below it, one accepted, two that the target refuses."""
    engine, _ = toy_engine(algorithm="ngram")
    engine.add(Request("a", (0, 1), GrammarSpec.regex("(ab|b|c)+"), max_new_tokens=9))
    engine.add(Request("dead", (0, 1), GrammarSpec.regex("z"), max_new_tokens=9))
    first = decoded([Request("a", (0, 1), GrammarSpec.regex("(ab|b|c)+"), max_new_tokens=1)])["a"].token_ids[0]
    wrong = next(token for token in (1, 2, 3) if token != first)

    def propose(batch: DecodeBatch) -> DraftTree:
        parents = np.array([-1, 0, 0, 0, 3, 2, -1])  # the last two: below the wrong one, and the dead request
        tokens = np.array([1, first, wrong, 12, 12, wrong, 1])
        return DraftTree.from_host(batch.step, HostTree.from_parents(np.array([0, 6, 7]), tokens, parents))

    engine._parts.producer.propose = propose  # type: ignore[method-assign]  # a tree by hand
    outputs = engine.step()
    trace = engine.trace
    assert [output.request_id for output in outputs] == ["dead"]
    assert (trace.num_steps, trace.num_draft_tokens, trace.num_accepted) == (1, 3, 1)
    assert (trace.num_pruned, trace.num_rejected_by_grammar, trace.num_rejected_by_target) == (2, 0, 2)


class GrammarReader:
    """A producer that drafts what the grammar forces, read from the matcher before it proposes."""

    needs: Needs = "grammar"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: list[list[int]] = []

    def propose(self, batch: DecodeBatch) -> DraftTree:
        chains = []
        for request in batch.requests:
            session = self.engine._parts.ledger.entries[request.request_id].session
            assert session.cursor is not None
            legal = legal_ids(session.cursor.matcher)
            replay = matcher("xgrammar", GrammarSpec.regex("(ab){30}c"))
            replay.accept_prefix(request.tokens[request.num_prompt_tokens :])
            assert legal == legal_ids(replay), "the grammar is behind the history"
            chains.append(
                [request.tokens[-1], *(legal if len(legal) == 1 and request.max_draft_tokens else [])]
            )
        return DraftTree.from_host(batch.step, HostTree.from_chains(chains))

    def observe(self, commits: Any) -> None:
        self.seen += [list(commit.tokens) for commit in commits]


def test_a_producer_that_needs_the_grammar_finds_it_behind_the_history() -> None:
    request = Request("a", (0,), GrammarSpec.regex("(ab){30}c"), max_new_tokens=80)
    engine, _ = toy_engine()
    reader = GrammarReader(engine)
    engine._parts = dataclasses.replace(engine._parts, producer=reader)
    (output,) = engine.generate([request])
    assert output.token_ids == decoded([request])["a"].token_ids
    assert [token for tokens in reader.seen for token in tokens] == list(output.token_ids)


@pytest.mark.parametrize(("policy", "tokens"), [("eager", (STOP,)), ("lazy", ())])
def test_invariant_4_an_end_that_the_grammar_does_not_share_is_an_error(
    policy: str, tokens: tuple[int, ...]
) -> None:
    """The mask is lost: the stop token comes out although the grammar cannot end there."""
    engine, target = toy_engine(mask_policy=policy)
    verify = target.verify

    def unmasked(batch: DecodeBatch, tree: DraftTree) -> Any:
        ready = verify(batch, tree)
        ready.logits[:] = -50.0
        ready.logits[:, STOP] = 50.0
        return ready

    target.verify = unmasked  # type: ignore[method-assign]  # the planted fault
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specgrammar.grammar.mask.apply_on_cpu", lambda *_: None)
        patch.setattr("specgrammar.runtime.lazy_walk.can_draw_on_cpu", lambda _: False)  # it reads rows itself
        (output,) = engine.generate([Request("a", (0,), GRAMMARS[0], max_new_tokens=5)])
    assert (output.finish_reason, output.token_ids) == ("error", tokens)
    assert f"the grammar refuses token id {STOP}" in str(output.error)


@pytest.mark.parametrize("needs", ["gramar", None])
def test_invariant_10_a_producer_that_says_nonsense_is_refused(needs: str | None) -> None:
    class Nonsense:
        def __init__(self, real: Any) -> None:
            self.real, self.needs = real, needs

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    class Algorithm:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def make_producer(self, context: Any) -> Any:
            return Nonsense(self.real.make_producer(context))

    algorithm: Any = Algorithm(create(ALGORITHMS, "none"))
    with pytest.raises(PluginError, match="needs is"):
        Engine(ToyAdapter(), backend("xgrammar"), algorithm, Config())


def test_invariant_10_a_batch_larger_than_the_targets_is_refused() -> None:
    target = ToyTarget(max_batch_size=2)
    with pytest.raises(ConfigError, match="max_batch_size = 3, but the target was loaded for 2"):
        Engine.build(Config(max_batch_size=3), ToyAdapter(target))


def test_a_model_that_fails_at_the_prompt_ends_that_request() -> None:
    engine, target = toy_engine()
    add = target.add

    def out_of_memory(request_id: str, tokens: Any) -> None:
        if request_id == "big":
            raise RuntimeError("out of memory")
        add(request_id, tokens)

    target.add = out_of_memory  # type: ignore[method-assign]  # the planted fault
    requests = [Request(name, (0,), GRAMMARS[0], max_new_tokens=4) for name in ("big", "small")]
    outputs = {output.request_id: output for output in engine.generate(requests)}
    assert outputs["big"].error == "RuntimeError: out of memory"
    assert outputs["small"].error is None
