"""The walk over a tree: what it leaves behind, what it costs, and what it says."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from specgrammar.errors import ConfigError, MatcherError
from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import GrammarMatcher, GrammarSpec
from specgrammar.runtime.request import Request
from specgrammar.testing.reference import ReferenceBackend, ReferenceMatcher
from specgrammar.testing.toys import PAD, STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.catalogue.naive import Row, chain_rows
from tests.catalogue.ours import (
    AB,
    LIVE,
    ONE,
    PADDING,
    PAIRS,
    REJECTED,
    A,
    B,
    decoded,
    engine_of,
    every_backend,
    gate_behind,
    legal_behind,
    mask_of,
    matcher,
    matcher_of,
    plain_decoding,
    replayed,
    rows_for,
    session_of,
    state_of,
    tree_of,
)
from tests.toys import legal_ids

MANY_PAIRS = GrammarSpec.regex("(ab){30}c")
BROKEN = GrammarSpec.regex("(ab){29}c")


class ShortMemory(ReferenceMatcher):
    """Keeps what two rollbacks need, as a matcher in bounded memory does."""

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > 2:
            raise MatcherError(f"rollback({num_tokens}): only 2 tokens are kept")
        super().rollback(num_tokens)


class ShortBackend(ReferenceBackend):
    """The backend of `ShortMemory`, which says so."""

    facts = dataclasses.replace(ReferenceBackend.facts, max_rollback=2)


def test_failure_22_a_backend_without_enough_rollback_is_admitted() -> None:
    chain_rows(matcher_of(ShortMemory, PAIRS), [AB, AB])
    with pytest.raises(MatcherError, match="only 2 tokens"):  # in the decode loop, at the first deep draft
        chain_rows(matcher_of(ShortMemory, PAIRS), [AB, AB, AB])

    backend = ShortBackend(VOCABULARY)
    for policy, depth in (("eager", 2), ("lazy", 1)):
        engine_of("chain", backend, algorithm_options={"num_draft_tokens": depth}, mask_policy=policy)
        with pytest.raises(ConfigError, match="can undo 2 tokens"):
            engine_of("chain", backend, algorithm_options={"num_draft_tokens": depth + 1}, mask_policy=policy)


@dataclasses.dataclass
class Faulty:
    """The reference, raising in one call for one grammar."""

    where: str
    inner: ReferenceBackend = dataclasses.field(default_factory=lambda: ReferenceBackend(VOCABULARY))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def compile(self, spec: GrammarSpec) -> Any:
        if self.where == "compile" and spec == BROKEN:
            raise RuntimeError("planted")
        return self.inner.compile(spec)

    def matcher(self, compiled: Any) -> GrammarMatcher:
        made: Any = self.inner.matcher(compiled)
        if compiled.spec == BROKEN:
            if self.where == "matcher":
                raise RuntimeError("planted")
            setattr(made, self.where, self.fail)
        return made  # type: ignore[no-any-return]  # patched

    def fail(self, *_: object) -> Any:
        raise RuntimeError("planted")


CALLS = ("compile", "matcher", "fill_bitmask", "accept", "accept_prefix", "rollback")


@pytest.mark.parametrize("where", CALLS)
def test_failure_23_a_backend_that_raises_at_each_call_takes_the_batch_with_it(where: str) -> None:
    def naive() -> list[list[Row]]:
        backend = Faulty(where)
        matchers = [backend.matcher(backend.compile(spec)) for spec in (MANY_PAIRS, BROKEN, MANY_PAIRS)]
        for state in matchers:
            state.accept_prefix([A, B])
        return [chain_rows(state, [A, B]) for state in matchers]

    with pytest.raises(RuntimeError, match="planted"):  # nobody's rows are there
        naive()

    requests = [Request(name, (A, B) * 4, MANY_PAIRS, max_new_tokens=20) for name in ("first", "last")]
    requests.insert(1, Request("broken", (A, B) * 4, BROKEN, max_new_tokens=20))
    faulty: Any = Faulty(where)  # what it lacks is the reference's
    engine, target = engine_of("ngram", faulty, mask_policy="eager")
    outputs = decoded(engine, *requests)
    assert outputs["broken"].finish_reason == "error"
    assert "planted" in str(outputs["broken"].error)
    for request in (requests[0], requests[2]):
        assert list(outputs[request.request_id].token_ids) == plain_decoding(request)
    assert engine.trace.num_accepted > 0
    assert target.cache == {}


class Breaking(ReferenceMatcher):
    """Raises at its third row."""

    num_rows = 0

    def fill_bitmask(self, bitmask: Row, row: int) -> None:
        self.num_rows += 1
        if self.num_rows == 3:
            raise RuntimeError("planted")
        super().fill_bitmask(bitmask, row)


def test_failure_48_a_walk_that_raises_half_way_leaves_the_matcher_moved() -> None:
    naive = matcher_of(Breaking, PAIRS)
    with pytest.raises(RuntimeError, match="planted"):
        chain_rows(naive, [A, B, AB])
    assert legal_ids(naive) == legal_behind(PAIRS, [A, B]) != legal_behind(PAIRS, []), "two drafts are in it"

    state = matcher_of(Breaking, PAIRS)
    session = GrammarSession(VOCABULARY, state)
    status = session.fill(HostTree.from_chains([[A, A, B, AB]]), rows_for(4))
    assert (session.finish, status.tolist()) == ("error", [PADDING] * 4)
    assert legal_ids(state) == legal_behind(PAIRS, [])
    with pytest.raises(MatcherError):
        state.rollback(1)


def recursive_rows(state: GrammarMatcher, tree: HostTree, node: int, rows: Row) -> None:
    """Fill a node's row, then those of its children, each behind its own token."""
    state.fill_bitmask(rows, node)
    child = int(tree.retrieve_next_token[node])
    while child >= 0:
        if state.accept(int(tree.draft_tokens[child])):
            recursive_rows(state, tree, child, rows)
            state.rollback(1)
        child = int(tree.retrieve_next_sibling[child])


@every_backend
def test_failure_49_recursion_ends_on_a_long_chain(name: str) -> None:
    tree = HostTree.from_chains([[A, *[A, B] * 1500]])
    naive = matcher(PAIRS, name)
    with pytest.raises(RecursionError):
        recursive_rows(naive, tree, 0, rows_for(tree.num_nodes))
    naive.rollback(100)  # and what was accepted on the way down is still there

    session = session_of(PAIRS, name=name)
    assert (mask_of([session], tree).status == LIVE).all()
    assert session.error is None
    assert legal_ids(state_of(session)) == legal_behind(PAIRS, [], name)


@every_backend
def test_failure_61_rollback_by_the_drafts_that_were_offered(name: str) -> None:
    history, drafts = [AB, A], [B, ONE, AB]
    naive = replayed(PAIRS, history, name)
    naive.accept_prefix(drafts)  # stops at the second
    naive.rollback(len(drafts))
    assert legal_ids(naive) == legal_behind(PAIRS, [], name) != legal_behind(PAIRS, history, name)

    session = session_of(PAIRS, history, name)
    tree = tree_of([A, *drafts, ONE], [-1, 0, 1, 2, 0])
    for _ in range(3):
        assert session.validate(drafts) == 1
        assert session.fill(tree, rows_for(5)).tolist() == [LIVE, LIVE, *[REJECTED] * 3]
    assert legal_ids(state_of(session)) == legal_behind(PAIRS, history, name) == [B]


@every_backend
@pytest.mark.parametrize("illegal", [ONE, PAD, STOP])
def test_failure_44_expected_rejections_are_logged_as_errors(
    name: str, illegal: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("naive")

    def naive_validate(state: GrammarMatcher, drafts: Sequence[int]) -> int:
        for index, draft in enumerate(drafts):
            if not state.accept(draft):
                log.error("the grammar did not take token %d", draft)
                return index
        return len(drafts)

    assert naive_validate(matcher(PAIRS, name), [A, illegal]) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"], "for a draft that was only a guess"
    caplog.clear()

    session = session_of(PAIRS, name=name)
    assert session.validate([A, illegal]) == 1
    assert session.fill(HostTree.from_chains([[A, A, illegal]]), rows_for(3)).tolist() == [LIVE, LIVE, REJECTED]
    assert session.follow([A, illegal]) == 1
    session.commit([A, B])
    assert session.error is None
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


class Counting(ReferenceMatcher):
    """Counts its moves and rows."""

    num_calls = 0

    def accept(self, token: int) -> bool:
        self.num_calls += 1
        return super().accept(token)

    def rollback(self, num_tokens: int) -> None:
        self.num_calls += num_tokens
        super().rollback(num_tokens)

    def fill_bitmask(self, bitmask: Row, row: int) -> None:
        self.num_calls += 1
        super().fill_bitmask(bitmask, row)


class CountingList(list[int]):
    """A history that counts how many of its tokens are read in a loop."""

    num_read = 0

    def __iter__(self) -> Any:
        for token in super().__iter__():
            CountingList.num_read += 1
            yield token


def test_failure_41_a_step_costs_more_the_longer_the_output_is() -> None:
    naive, output, costs = matcher_of(Counting, PAIRS), CountingList(), []
    for _ in range(200):
        before = naive.num_calls, CountingList.num_read
        assert not any(token == PAD for token in output)  # has the reasoning ended?
        naive.rollback(len(output))
        output += [AB]
        naive.accept_prefix(output)
        costs.append((naive.num_calls - before[0], CountingList.num_read - before[1]))
    assert [costs[n] for n in (10, 190)] == [(21, 21), (381, 381)]

    for gate, begin in ((None, []), (gate_behind(PAD), [ONE, PAD])):
        state = matcher_of(Counting, PAIRS)
        session = GrammarSession(VOCABULARY, state, gate=gate)
        session.output = CountingList()
        session.commit(begin)
        costs = []
        for _ in range(200):
            before = state.num_calls, CountingList.num_read
            session.fill(HostTree.from_chains([[AB, AB, AB]]), rows_for(3))
            session.commit([AB, AB])
            costs.append((state.num_calls - before[0], CountingList.num_read - before[1]))
        assert len(set(costs)) == 1, costs
        assert costs[0][0] <= 9
