"""From a request to its grammar: failures, limits, caches, and who gets which matcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from specgrammar.errors import DeadEndError, GrammarCompileError, WeakenedSchemaError
from specgrammar.grammar.compile_cache import CompileCache
from specgrammar.grammar.compile_service import CompileService
from specgrammar.protocols.grammar import CompiledGrammar, GrammarSpec, Vocabulary
from specgrammar.runtime.request import Request
from specgrammar.runtime.waiting import AgreeJoins
from specgrammar.spec.sampling import SamplingParams
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import SPECIAL, STOP, TEXTS, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.catalogue.naive import FlaggedGrammar, masked
from tests.catalogue.ours import (
    AB,
    NAMES,
    PAIRS,
    A,
    B,
    backend,
    decoded,
    engine_of,
    every_backend,
    matcher,
    plain_decoding,
    rows_for,
    session_of,
    step,
    wanting,
)
from tests.catalogue.test_limits import legal_over, matcher_over
from tests.toys import legal_ids

SLOW = GrammarSpec.regex("(ab){2,9}c")
BROKEN = (
    GrammarSpec.regex("a("),
    GrammarSpec.json_schema("{"),
    GrammarSpec.json_schema({"type": "nothing"}),
    GrammarSpec.grammar("root ::= "),
)


class Gated(ReferenceBackend):
    """Compiles `SLOW` only once it may."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.gate = threading.Event()

    def compile(self, spec: GrammarSpec) -> Any:
        if spec == SLOW:
            assert self.gate.wait(60)
        return super().compile(spec)


@pytest.fixture
def gated() -> Iterator[Gated]:
    made = Gated()
    yield made
    made.gate.set()


def request(name: str, spec: GrammarSpec | None, **options: Any) -> Request:
    return Request(name, (A, B), spec, max_new_tokens=8, **options)


def test_failure_33_ranks_see_grammars_ready_at_different_times(gated: Gated) -> None:
    requests = [request("slow", SLOW), request("quick", PAIRS)]
    told: list[tuple[int, ...]] = []

    def first(numbers: tuple[int, ...]) -> tuple[int, ...]:
        told.append(numbers)
        return numbers

    def joined(grammars: Gated, agree: AgreeJoins) -> list[set[str]]:
        engine, target = engine_of("none", grammars, agree_joins=agree)
        for each in requests:
            engine.add(each)
        batches = []
        for number in range(9):
            if number == 2:
                grammars.gate.set()
                for waiting in engine._waiting._waiting:
                    assert waiting.ticket is not None
                    waiting.ticket.result()
            engine.step()
            batches.append(set(target.cache))
        return batches

    ready_at_once = Gated()
    ready_at_once.gate.set()
    naive = [joined(rank, lambda numbers: numbers) for rank in (gated, ready_at_once)]  # each by its own clock
    assert naive[0] != naive[1], "two ranks, two batches, and a collective that never returns"

    gated = Gated()
    first_rank = joined(gated, first)
    replies = iter(told)
    assert joined(ready_at_once, lambda _: next(replies)) == first_rank
    assert first_rank[0] == {"quick"}
    assert {"slow", "quick"} in first_rank


@every_backend
@pytest.mark.parametrize("spec", BROKEN, ids=["regex", "text", "type", "grammar"])
def test_failure_34_a_compile_failure_escapes(name: str, spec: GrammarSpec) -> None:
    def naive() -> list[Any]:  # the future's result is read where the batch is made
        return [matcher(each, name) for each in (PAIRS, spec, PAIRS)]

    with pytest.raises(GrammarCompileError):
        naive()

    engine, target = engine_of("ngram", backend(name))
    outputs = decoded(engine, request("good", PAIRS), request("bad", spec), request("free", None))
    assert (outputs["bad"].finish_reason, outputs["bad"].token_ids) == ("error", ())
    assert outputs["bad"].error
    for good in (request("good", PAIRS), request("free", None)):
        assert list(outputs[good.request_id].token_ids) == plain_decoding(good)
    assert target.cache == {}


def test_failure_35_a_compile_has_no_limit(gated: Gated) -> None:
    joined: list[str] = []

    def naive() -> None:
        for spec in (SLOW, PAIRS):
            gated.compile(spec)
            joined.append(spec.source)

    engine_loop = threading.Thread(target=naive)
    engine_loop.start()
    engine_loop.join(0.05)
    assert engine_loop.is_alive()
    assert joined == [], "nobody is served, whoever's grammar it is"
    gated.gate.set()
    engine_loop.join()
    gated.gate.clear()

    engine, _ = engine_of("none", gated, agree_joins=lambda numbers: numbers, compile_timeout_s=0.05)
    outputs = decoded(engine, request("slow", SLOW), request("quick", PAIRS))
    assert list(outputs["quick"].token_ids) == plain_decoding(request("quick", PAIRS))
    assert "not compiled within 0.05 s" in str(outputs["slow"].error)


@every_backend
def test_failure_36_the_legal_set_is_empty(name: str) -> None:
    stuck = GrammarSpec.regex("a(z|zz)")  # no token of the vocabulary holds a z
    state = matcher(stuck, name)
    state.accept(A)
    rows = rows_for(1)
    with pytest.raises(DeadEndError):
        state.fill_bitmask(rows, 0)
    naive = masked(wanting(AB), list(rows))[:, : VOCABULARY.vocab_size]
    assert naive.softmax(dim=-1).isnan().all()
    assert int(naive.argmax()) == A, "or the first id, which is not legal"

    sessions = [session_of(PAIRS, name=name), session_of(stuck, [A], name), session_of(PAIRS, name=name)]
    outputs = step(sessions, HostTree.roots([A] * 3), wanting(AB, AB, AB))
    assert outputs == [[AB], [A], [AB]]
    assert [session.finish for session in sessions] == [None, "error", None]
    assert "admits no token" in str(sessions[1].error)
    engine, _ = engine_of("chain", backend(name))
    outputs_of = decoded(engine, request("stuck", stuck), request("good", PAIRS))
    assert outputs_of["stuck"].finish_reason == "error"
    assert list(outputs_of["good"].token_ids) == plain_decoding(request("good", PAIRS))


@every_backend
@pytest.mark.parametrize("spec", BROKEN[:2], ids=lambda spec: spec.kind)
def test_failure_40_a_parse_failure_means_no_constraint(name: str, spec: GrammarSpec) -> None:
    def naive(each: GrammarSpec) -> Any:
        try:
            return matcher(each, name)
        except GrammarCompileError:
            return None  # and None is a request without a grammar

    assert naive(spec) is None
    engine, _ = engine_of("none", backend(name))
    output = decoded(engine, request("a", spec))["a"]
    assert (output.token_ids, output.finish_reason) == ((), "error")
    assert output.error != ""


@every_backend
def test_failure_42_samples_of_one_prompt_share_a_matcher(name: str) -> None:
    shared = matcher(PAIRS, name)
    samples = [FlaggedGrammar(shared), FlaggedGrammar(shared)]
    assert samples[0].accept_tokens([A])
    assert not samples[1].accept_tokens([A]), "the second sample stands behind the first one's token"

    spec = GrammarSpec.regex("[abc12]{6,9}")
    sampled = [request(str(n), spec, sampling=SamplingParams(1.5, seed=n)) for n in range(4)]
    engine, _ = engine_of("ngram", backend(name))
    together = decoded(engine, *sampled)
    for each in sampled:
        engine, _ = engine_of("none", backend(name))
        assert decoded(engine, each)[each.request_id].token_ids == together[each.request_id].token_ids
    assert len({output.token_ids for output in together.values()}) > 1
    compiled = backend(name).compile(PAIRS)
    one, other = backend(name).matcher(compiled), backend(name).matcher(compiled)
    one.accept(A)
    assert legal_ids(other) == [A, AB]


@every_backend
def test_failure_50_special_tokens_are_legal_inside_strings(name: str) -> None:
    texts = (*TEXTS, b"", b"", b"ab")  # what a control token looks like when it is printed
    spec = GrammarSpec.regex("[ab]{2,6}")
    naive = Vocabulary(texts, (STOP,), frozenset({STOP}))  # as tokenizers that report no special ids
    assert SPECIAL in legal_over(naive, matcher_over(name, naive, spec))

    vocabulary = Vocabulary(texts, (STOP,), frozenset({STOP, SPECIAL}))
    state = matcher_over(name, vocabulary, spec)
    assert legal_over(vocabulary, state) == [A, B, AB]
    assert not state.accept(SPECIAL)


KEYWORD = {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxItems": 2}


@every_backend
def test_failure_55_schema_keywords_are_dropped_silently(name: str) -> None:
    known = {key: value for key, value in KEYWORD.items() if key != "contains"}
    brackets = Vocabulary((*TEXTS[:-1], b"[1]", b"", b"", b""), (STOP,), frozenset({STOP}))
    naive = matcher_over(name, brackets, GrammarSpec.json_schema(known))
    assert naive.accept_prefix([len(TEXTS) - 1, STOP]) == 2, "no 2 in it, and the schema asks for one"

    with pytest.raises(WeakenedSchemaError, match="contains"):
        matcher_over(name, brackets, GrammarSpec.json_schema(KEYWORD))
    allowed = GrammarSpec.json_schema(KEYWORD, allow_weakened=True)
    assert [pointer.rsplit("/", 1)[-1] for pointer in backend(name).compile(allowed).weakened] == ["contains"]
    engine, _ = engine_of("none", backend(name))
    outputs = decoded(engine, request("strict", GrammarSpec.json_schema(KEYWORD)))
    assert "contains" in str(outputs["strict"].error)


ALIKE = (
    GrammarSpec("regex", '["a"]'),
    GrammarSpec("choice", '["a"]'),
    GrammarSpec("json_schema", '{"const": {"a": 1}}', "spaced"),
    GrammarSpec("json_schema", '{"const": {"a": 1}}', "compact"),
    GrammarSpec("json_schema", '{"const": {"a": 1}}', "flexible"),
    GrammarSpec("json_schema", '{"const": {"a": 1}}', "spaced", allow_weakened=True),
)


@every_backend
def test_failure_56_a_compile_cache_mixes_up_kinds_and_options(name: str) -> None:
    naive: dict[str, CompiledGrammar] = {}
    for spec in ALIKE:
        naive.setdefault(spec.source, backend(name).compile(spec))
    assert len(naive) == 2
    assert naive['["a"]'].spec.kind == "regex", "what the choice gets, too"

    cache = CompileCache(100, 1 << 30)
    services = [CompileService(backend(each), cache=cache) for each in NAMES]
    services += [CompileService(backend(name), options={"any": 1}, cache=cache)]
    for service in services:
        for _ in range(2):
            for spec in ALIKE:
                assert service.submit(spec).result().spec == spec
    assert len(cache) == len(services) * len(ALIKE)
    for service in services:
        service.close()
    compact, spaced = (services[NAMES.index(name)].submit(ALIKE[n]).result() for n in (3, 2))
    for compiled, middle in ((compact, [b'":']), (spaced, [b'"', b": "])):
        state = backend(name).matcher(compiled)
        tokens = [TEXTS.index(part) for part in (b"{", b'"a', *middle, b"1", b"}")]
        assert state.accept_prefix([*tokens, STOP]) == len(tokens) + 1
