"""Illegal drafts are cut before the forward: nothing is committed otherwise, and fewer nodes are verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.config import Config
from specgrammar.errors import TreeError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.protocols.spec import DecodeBatch, RequestView
from specgrammar.runtime import step as step_module
from specgrammar.runtime.cpu_stream import CpuStream
from specgrammar.runtime.device import InlineDevice
from specgrammar.runtime.engine import Engine
from specgrammar.runtime.prune import can_prune, prune_illegal
from specgrammar.runtime.request import Request, RequestOutput
from specgrammar.runtime.timeline import Timeline
from specgrammar.runtime.trace import Trace
from specgrammar.spec.accept import accept
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.toy_target import ToyAdapter, join_in_order, toy_engine, toy_logits
from specgrammar.testing.toys import GRAMMARS, TEXTS, VOCABULARY, path_to
from specgrammar.trees.tree import DraftTree, HostTree, PrunedDraft, SampledProposals
from tests.toys import BACKEND_NAMES, expected_status, matcher

A, B, C = (TEXTS.index(text) for text in (b"a", b"b", b"c"))
SPECS = (*GRAMMARS, GrammarSpec.regex("(ab|bc|c){3,40}"))


@dataclass
class Case:
    """One request's tree, of which some nodes were drawn: all children of a node, or none."""

    tree: DraftTree
    host: HostTree
    spec: GrammarSpec | None

    @property
    def drawn(self) -> Sequence[bool]:
        assert self.tree.sampled is not None
        return [row >= 0 for row in self.tree.sampled.row_of_node]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num = draw(st.integers(1, 12))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, num))]
    tokens = [draw(st.integers(0, VOCABULARY.vocab_size - 1)) for _ in range(num)]
    draws = [draw(st.booleans()) for _ in range(num)]  # whether a node's children are drawn
    rows = [-1 if parent < 0 or not draws[parent] else parent for parent in parents]
    q = np.random.default_rng(draw(st.integers(0, 99))).dirichlet([0.3] * VOCABULARY.vocab_size, num)
    host = HostTree.from_parents(np.array([0, num]), np.array(tokens), np.array(parents))
    tree = DraftTree.from_host(
        3,
        host,
        sampled=SampledProposals(np.array(rows), torch.from_numpy(q.astype(np.float32))),
        score=np.arange(num, dtype=np.float32),
        source=(np.arange(num) % 2).astype(np.int16),
        sources=("even", "odd"),
    )
    return Case(tree, host, draw(st.sampled_from([*SPECS, None])))


def session_of(spec: GrammarSpec | None, backend: str = "xgrammar") -> GrammarSession:
    return GrammarSession(VOCABULARY, None if spec is None else matcher(backend, spec))


@settings(max_examples=150)
@given(cases(), st.sampled_from(BACKEND_NAMES))
def test_what_can_be_accepted_or_was_drawn_stays(case: Case, backend: str) -> None:
    session = session_of(case.spec, backend)
    pruned = prune_illegal(case.tree, case.host, [session])
    parents, num = case.host.parents().tolist(), case.host.num_nodes
    paths = [path_to(case.host, 0, node) for node in range(num)]
    legal = [
        case.spec is None
        or node == 0
        or expected_status(case.spec, backend, [], list(paths[node]))[0] != NodeStatus.REJECTED
        for node in range(num)
    ]
    kept = [n for n in range(num) if legal[n] or (case.drawn[n] and legal[parents[n]])]
    assert pruned.host is not None
    assert pruned.sampled is not None
    assert case.tree.sampled is not None
    assert [path_to(pruned.host, 0, node) for node in range(pruned.num_nodes)] == [paths[n] for n in kept]
    assert pruned.score is not None
    assert pruned.score.tolist() == kept, "scores are the nodes' old numbers"
    assert pruned.source is not None
    assert pruned.source.tolist() == [n % 2 for n in kept]
    assert pruned.sampled.row_of_node.tolist() == case.tree.sampled.row_of_node[kept].tolist()
    assert pruned.sampled.q is case.tree.sampled.q
    cut = [n for n in range(num) if n not in kept]
    assert list(pruned.pruned) == [PrunedDraft(0, tuple(paths[n]), n % 2, "illegal") for n in cut]
    if not cut:
        assert pruned is case.tree


@settings(max_examples=100)
@given(cases(), st.sampled_from(["target_only", "rejection"]), st.integers(0, 9), st.sampled_from([0.0, 1.0]))
def test_the_same_tokens_come_of_both_trees(case: Case, method: Any, seed: int, temperature: float) -> None:
    """Exact, so that the law is kept, too: drawn candidates that are illegal move the residual as before."""
    requests = [RequestView("a", [A, C], 2, 20, SamplingParams(temperature, seed=seed))]

    def committed(tree: DraftTree) -> list[int]:
        host, session = tree.host, session_of(case.spec)
        assert host is not None
        bitmask = np.zeros((host.num_nodes, VOCABULARY.num_words), np.int32)
        status = session.fill(host, bitmask)
        bits = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")[:, : VOCABULARY.vocab_size]
        rows = [
            toy_logits([A, C, *path_to(host, 0, n)])[: VOCABULARY.vocab_size] for n in range(host.num_nodes)
        ]
        logits = torch.stack(rows).masked_fill(torch.from_numpy(bits == 0), -torch.inf)
        paths = accept(host, logits, status, requests, method=method, sampled=tree.sampled)
        nodes = paths.accept_index[0, 1:]
        return [*host.draft_tokens[nodes[nodes >= 0]].tolist(), int(paths.bonus_token[0])]

    assert committed(prune_illegal(case.tree, case.host, [session_of(case.spec)])) == committed(case.tree)


ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"algorithm": "ngram", "algorithm_options": {"num_draft_tokens": 9, "min_match": 1}},
    {"algorithm": "chain", "algorithm_options": {"num_draft_tokens": 4, "min_match": 1}},
    {"algorithm": "forced"},
    {"algorithm": "forced+ngram", "algorithm_options": {"budget": 5}},
    {"algorithm": "ngram", "budget": 4},
)


def decoded(requests: list[Request], prunes: bool, **config: Any) -> tuple[dict[str, RequestOutput], Trace]:
    with pytest.MonkeyPatch.context() as patch:
        if not prunes:
            patch.setattr(step_module, "can_prune", lambda *_: False)
        engine, _ = toy_engine(**config)
        return {output.request_id: output for output in engine.generate(requests)}, engine.trace


request_lists = st.lists(
    st.builds(
        lambda prompt, spec, sampling, seed, start: Request(
            "?",
            tuple(prompt),
            spec,
            replace(sampling, seed=seed),
            24,
            grammar_start=() if spec is None else start,
        ),
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.sampled_from([*SPECS, None]),
        st.sampled_from([SamplingParams(), SamplingParams(1.0), SamplingParams(0.7, top_k=4)]),
        st.integers(0, 5),
        st.sampled_from([(), (A,)]),
    ),
    min_size=1,
    max_size=4,
).map(lambda requests: [replace(request, request_id=str(i)) for i, request in enumerate(requests)])


@settings(max_examples=40)
@given(
    request_lists,
    st.sampled_from(ALGORITHMS),
    st.sampled_from(BACKEND_NAMES),
    st.sampled_from(["eager", "lazy"]),
)
def test_the_output_is_the_same_with_and_without(
    requests: list[Request], config: dict[str, Any], backend: str, policy: Any
) -> None:
    config = config | {"backend": backend, "mask_policy": policy, "max_batch_size": 3}
    pruned, trace = decoded(requests, True, **config)
    whole, without = decoded(requests, False, **config)
    for name, output in pruned.items():
        assert (output.token_ids, output.finish_reason) == (whole[name].token_ids, whole[name].finish_reason)
    assert (trace.num_steps, trace.num_accepted) == (without.num_steps, without.num_accepted)
    assert trace.num_draft_tokens <= without.num_draft_tokens


def test_fewer_nodes_are_verified() -> None:
    requests = [Request("a", (A, B, C, A, C, B) * 4, GrammarSpec.regex("(ab|c){10,40}"), max_new_tokens=60)]
    config = {"algorithm": "chain", "algorithm_options": {"num_draft_tokens": 12, "min_match": 1}}
    _, trace = decoded(requests, True, **config, mask_policy="eager")
    _, without = decoded(requests, False, **config, mask_policy="eager")
    assert trace.num_pruned == without.num_rejected_by_grammar > 20
    assert trace.num_draft_tokens == without.num_draft_tokens - trace.num_pruned
    assert trace.num_rejected_by_grammar == 0
    counts = trace.sources.counts["chain"]
    assert counts.num_proposed == without.num_draft_tokens
    assert (counts.num_pruned, counts.num_verified) == (trace.num_pruned, trace.num_draft_tokens)
    assert counts.num_legal == counts.num_verified
    assert counts.num_accepted == trace.num_accepted > 0


def test_padding_is_left_out_with_and_without_a_grammar() -> None:
    """A device's trees have one capacity, and what it cut costs no forward."""
    next_token = np.array([[1, 2, -1, -1], [1, -1, -1, -1], [-1, -1, -1, -1]])
    tokens = np.array([[C, A, B, -1], [C, B, -1, -1], [C, -1, -1, -1]])
    host = HostTree.from_dense(tokens, next_token, np.full((3, 4), -1))
    tree = replace(DraftTree.from_host(0, host, source=np.arange(12, dtype=np.int16) % 2), sources=("a", "b"))
    sessions = [session_of(None), session_of(GrammarSpec.regex("a[ab]*")), session_of(None)]
    pruned = prune_illegal(tree, host, sessions)
    assert pruned.host is not None
    assert pruned.source is not None
    assert pruned.cu_nodes.tolist() == [0, 3, 4, 5]
    assert pruned.host.draft_tokens.tolist() == [C, A, B, C, C]
    assert pruned.source.tolist() == [0, 1, 0, 0, 0]
    assert pruned.pruned == (PrunedDraft(1, (B,), 1, "illegal"),), "padding was no draft"


def test_nothing_that_overlaps_is_lost_by_it() -> None:
    chain = DraftTree.from_host(0, HostTree.from_chains([[A, B]]))
    root = DraftTree.from_host(0, HostTree.roots([A]))
    on_device = DraftTree(0, chain.cu_nodes)
    stream = CpuStream()
    try:
        assert not can_prune(chain, "history", stream), "its grammar advances under the forward"
        assert can_prune(chain, "grammar", stream), "its grammar has advanced"
        assert not can_prune(on_device, "grammar", stream), "the host would wait for it"
    finally:
        stream.close()
    for needs in ("nothing", "history", "grammar"):
        assert can_prune(on_device, needs, InlineDevice())
        assert not can_prune(root, needs, InlineDevice()), "there is no draft"


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    host = HostTree.from_chains([[C, A, C], [C, A, C]])
    tree = DraftTree.from_host(0, host)
    sessions = [session_of(GrammarSpec.regex("a[ab]*")) for _ in range(2)]
    cursor = sessions[0].cursor
    assert cursor is not None

    def broken(_: object) -> int:
        raise RuntimeError("no")

    cursor.matcher.accept_prefix = broken  # type: ignore[method-assign, assignment]  # the planted fault
    pruned = prune_illegal(tree, host, sessions)
    assert pruned.host is not None
    assert (sessions[0].finish, sessions[1].finish) == ("error", None)
    assert pruned.cu_nodes.tolist() == [0, 3, 5], "the nodes of one that is over stay: they are dead"
    assert pruned.pruned == (PrunedDraft(1, (A, C), -1, "illegal"),)


def test_sources_that_do_not_fit_are_refused_before_the_forward() -> None:
    adapter = ToyAdapter()
    engine = Engine.build(Config(algorithm="ngram"), adapter, agree_joins=join_in_order)
    engine.add(Request("a", (A, B), None, max_new_tokens=4))

    def propose(batch: DecodeBatch) -> DraftTree:
        host = HostTree.from_chains([[B, A]])
        return DraftTree.from_host(batch.step, host, source=np.array([0, 1], np.int16), sources=("one",))

    engine._parts.producer.propose = propose  # type: ignore[method-assign]  # a tree by hand
    with pytest.raises(TreeError, match="does not fit a tree of 2 nodes and the sources one"):
        engine.step()
    assert adapter.target.num_forwards == 0


def test_grammars_that_move_for_pruning_do_so_at_the_barrier() -> None:
    engine, _ = toy_engine(algorithm="ngram")
    engine.trace.timeline = timeline = Timeline()
    moved_at: list[float] = []
    advance = GrammarSession.advance

    def watched(session: GrammarSession) -> None:
        if len(session.output) > session._num_advanced:
            moved_at.append(time.perf_counter())
        advance(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrammarSession, "advance", watched)
        list(engine.generate([Request("r", (A, B, A, B), GrammarSpec.regex("(ab){6}c"), max_new_tokens=30)]))
    barriers = [(span.begin, span.end) for span in timeline.spans if span.stage == "barrier"]
    at_a_barrier = [any(begin <= moved <= end for begin, end in barriers) for moved in moved_at]
    assert len(at_a_barrier) > 3
    assert all(at_a_barrier[:-1]), "but for the last move, which is made before the output leaves"
