"""Masks over trees, node by node against a replay of each node's own path on a fresh matcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import ConfigError, MatcherError, SpecGrammarError, TreeError
from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.calls import calls_of
from specgrammar.grammar.dense import fill_dense
from specgrammar.grammar.mask import GrammarMask
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Resolved
from specgrammar.grammar.workers import FillWorkers
from specgrammar.protocols.abilities import WalkCalls
from specgrammar.protocols.grammar import GrammarSpec, NodeStatus
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.strategies import trees
from specgrammar.testing.toys import GRAMMARS, PAD, SPECIAL, STOP, VOCABULARY, path_to
from specgrammar.trees.tree import HostTree
from tests.toys import BACKEND_NAMES, expected_status, legal_ids, matcher

DEVICE = InlineDevice()
INTERESTING = [0, 1, 2, 3, 0, 1, STOP, 12, 4, SPECIAL, PAD, VOCABULARY.vocab_size, 2**40]
LIVE, FREE, ENDED, REJECTED, PADDING = (
    NodeStatus.LIVE,
    NodeStatus.FREE,
    NodeStatus.ENDED,
    NodeStatus.REJECTED,
    NodeStatus.PADDING,
)
grammars = st.sampled_from(GRAMMARS)
names = st.sampled_from(BACKEND_NAMES)


def toy_trees(max_requests: int = 4) -> st.SearchStrategy[HostTree]:
    """Trees over ids that matter: legal ones, stop, special, and ids that no backend may see."""

    def interesting(tree: HostTree) -> HostTree:
        table = np.array([*INTERESTING, -1])
        return dataclasses.replace(tree, draft_tokens=table[tree.draft_tokens])

    return trees(max_requests=max_requests, max_nodes=10, vocab_size=len(INTERESTING)).map(interesting)


def walked(name: str, spec: GrammarSpec, choices: list[int]) -> tuple[GrammarSession, list[int]]:
    """A session behind a legal prefix that `choices` pick, never ended, and the prefix."""
    session = GrammarSession(VOCABULARY, matcher(name, spec))
    prefix: list[int] = []
    for choice in choices:
        legal = [i for i in legal_ids(session.cursor.matcher) if i != STOP]  # type: ignore[union-attr]
        if not legal:
            break
        prefix.append(legal[choice % len(legal)])
        session.commit([prefix[-1]])
    return session, prefix


def build(sessions: list[GrammarSession], tree: HostTree, workers: FillWorkers | None = None) -> GrammarMask:
    ring = BitmaskRing(DEVICE, VOCABULARY.num_words)
    return build_grammar_mask(sessions, Resolved(tree), ring, DEVICE, VOCABULARY, workers=workers)


@given(st.data(), toy_trees(), names)
def test_invariant_5_every_row_is_that_of_the_nodes_own_ancestry(
    data: st.DataObject, tree: HostTree, name: str
) -> None:
    bs = len(tree.cu_nodes) - 1
    specs = data.draw(st.lists(grammars, min_size=bs, max_size=bs))
    starts = [walked(name, spec, data.draw(st.lists(st.integers(0, 9), max_size=4))) for spec in specs]
    mask = build([session for session, _ in starts], tree)
    rows = mask.bitmask.tolist()
    for b, (spec, (session, prefix)) in enumerate(zip(specs, starts, strict=True)):
        first, end = tree.cu_nodes[b : b + 2].tolist()
        for node in range(end - first):
            if node and tree.draft_tokens[first + node] < 0:
                assert mask.status[first + node] == PADDING
                continue
            status, row = expected_status(spec, name, prefix, path_to(tree, first, node))
            assert mask.status[first + node] == status
            owned = mask.row_of_node[first + node]
            assert (rows[owned] if owned >= 0 else []) == row
        assert session.finish is None


@given(st.lists(st.sampled_from(INTERESTING[:8]), max_size=10), names, grammars)
def test_invariant_5_a_chain_is_the_degenerate_tree(drafts: list[int], name: str, spec: GrammarSpec) -> None:
    """As a chain, and as a tree whose every node also has an illegal sibling: the same statuses and rows."""
    chain = HostTree.from_chains([[0, *drafts]])
    parents = [
        -1,
        *(2 * ((i - 1) // 2) - (1 if i > 2 else 0) if i > 2 else 0 for i in range(1, 2 * len(drafts) + 1)),
    ]
    tokens = [0, *(token for draft in drafts for token in (draft, PAD))]
    tree = HostTree.from_parents(np.array([0, len(tokens)]), np.array(tokens), np.array(parents))
    alone, bushy = (
        build([GrammarSession(VOCABULARY, matcher(name, spec))], forest) for forest in (chain, tree)
    )
    assert alone.status.tolist() == [int(bushy.status[0]), *bushy.status[1::2].tolist()]
    assert alone.bitmask.tolist() == bushy.bitmask.tolist()


@given(toy_trees(), names, grammars)
def test_invariant_3_the_dense_layout_has_row_i_for_node_i(
    tree: HostTree, name: str, spec: GrammarSpec
) -> None:
    bs = len(tree.cu_nodes) - 1
    compact = build([GrammarSession(VOCABULARY, matcher(name, spec)) for _ in range(bs)], tree)
    buffer = np.full((len(tree.draft_tokens) + 2, VOCABULARY.num_words), 7, np.int32)
    status = fill_dense([GrammarSession(VOCABULARY, matcher(name, spec)) for _ in range(bs)], tree, buffer)
    assert status.tolist() == compact.status.tolist()
    for node, owned in enumerate(compact.row_of_node.tolist()):
        expected = compact.bitmask[owned].tolist() if owned >= 0 else [-1] * VOCABULARY.num_words
        assert buffer[node].tolist() == expected
    assert (buffer[len(tree.draft_tokens) :] == 7).all()


class Raising:
    """A matcher that raises at the n-th call of a method, and is the real one otherwise.

    `unchecked`: the same through the calls of `walk_calls`, where the matcher has them.
    """

    def __init__(self, name: str, spec: GrammarSpec, method: str, at: int, *, unchecked: bool = False) -> None:
        self._real, self._method, self._left, self._unchecked = matcher(name, spec), method, at, unchecked

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "native_calls":
            raise AttributeError(attribute)
        if attribute == "walk_calls":
            if not self._unchecked:
                raise AttributeError(attribute)
            return self._walk_calls
        found = getattr(self._real, attribute)
        return self._counted(found) if attribute == self._method else found

    def _walk_calls(self, bitmask: NDArray[np.int32]) -> WalkCalls:
        calls = calls_of(self._real)(bitmask)
        field = {"fill_bitmask": "fill"}.get(self._method, self._method)
        return calls._replace(**{field: self._counted(getattr(calls, field))})

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object) -> object:
            self._left -= 1
            if self._left == 0:
                raise RuntimeError("planted")
            return call(*args)

        return counting


def raising(name: str, spec: GrammarSpec, method: str, at: int, *, unchecked: bool = False) -> Any:
    """A `Raising` for where a matcher is expected: it has all members, but a type checker cannot see them."""
    return Raising(name, spec, method, at, unchecked=unchecked)


@given(toy_trees(1).filter(lambda t: len(t.cu_nodes) == 2), names, grammars)
def test_invariant_2_a_build_leaves_every_matcher_as_found(
    tree: HostTree, name: str, spec: GrammarSpec
) -> None:
    session = GrammarSession(VOCABULARY, matcher(name, spec))
    assert session.cursor is not None
    before = legal_ids(session.cursor.matcher)
    build([session], tree)
    assert legal_ids(session.cursor.matcher) == before
    with pytest.raises(MatcherError):
        session.cursor.matcher.rollback(1)


@given(
    toy_trees(1).filter(lambda t: len(t.cu_nodes) == 2),
    names,
    grammars,
    st.integers(1, 6),
    st.sampled_from(["fill_bitmask", "accept"]),
    st.booleans(),
)
def test_invariant_2_also_when_a_call_raises_half_way(
    tree: HostTree, name: str, spec: GrammarSpec, at: int, method: str, unchecked: bool
) -> None:
    planted = raising(name, spec, method, at, unchecked=unchecked)
    session = GrammarSession(VOCABULARY, planted)
    mask = build([session], tree)
    raised = session.finish == "error"
    assert raised == (planted._left <= 0)
    if raised:
        assert "RuntimeError: planted" in str(session.error)
        assert not mask.status.any(), "nothing of a failed request may be accepted"
    with pytest.raises(MatcherError):
        planted._real.rollback(1)


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in BACKEND_NAMES for method in ("fill_bitmask", "accept", "rollback")],
)
def test_invariant_9_a_raising_backend_ends_its_own_request_only(name: str, method: str) -> None:
    tree = HostTree.from_chains([[0, 0, 1], [0, 0, 1], [0, 0, 1]])
    sessions = [GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0])) for _ in range(3)]
    sessions[1] = GrammarSession(VOCABULARY, raising(name, GRAMMARS[0], method, 1))
    mask = build(sessions, tree)
    assert [session.finish for session in sessions] == [None, "error", None]
    assert "planted" in str(sessions[1].error)
    assert mask.status.tolist() == [LIVE] * 3 + [PADDING] * 3 + [LIVE] * 3
    buffer = np.zeros((9, VOCABULARY.num_words), np.int32)
    sessions[1] = GrammarSession(VOCABULARY, raising(name, GRAMMARS[0], method, 1))
    status = fill_dense(sessions, tree, buffer)
    assert status[3:6].tolist() == [PADDING] * 3
    assert (buffer[3:6] == -1).all(), "the engine's convention for rows that are not live"


@given(toy_trees(1).filter(lambda t: len(t.cu_nodes) == 2), grammars, st.booleans())
def test_a_native_walk_is_the_walk_node_by_node(tree: HostTree, spec: GrammarSpec, dense: bool) -> None:
    native, plain = matcher("xgrammar", spec), raising("xgrammar", spec, "accept", 10**9, unchecked=True)
    sessions = [GrammarSession(VOCABULARY, native), GrammarSession(VOCABULARY, plain)]
    if dense:
        buffers = [np.zeros((len(tree.draft_tokens), VOCABULARY.num_words), np.int32) for _ in range(2)]
        statuses = [fill_dense([s], tree, b).tolist() for s, b in zip(sessions, buffers, strict=True)]
        assert buffers[0].tolist() == buffers[1].tolist()
    else:
        masks = [build([session], tree) for session in sessions]
        statuses = [mask.status.tolist() for mask in masks]
        rows = [
            {node: mask.bitmask[row].tolist() for node, row in enumerate(mask.row_of_node) if row >= 0}
            for mask in masks
        ]
        assert rows[0] == rows[1]
    assert statuses[0] == statuses[1]
    with pytest.raises(MatcherError):
        native.rollback(1)
    assert legal_ids(native) == legal_ids(matcher("xgrammar", spec))


class ThreeThreads(FillWorkers):
    """Always uses three threads."""

    def __init__(self) -> None:
        super().__init__(3)

    def num_threads(self, num_nodes: int, kind: str = "walk") -> int:  # noqa: ARG002
        return 3


THREE_THREADS = ThreeThreads()


@given(st.data(), toy_trees(7))
def test_threads_give_every_node_the_same_row(data: st.DataObject, tree: HostTree) -> None:
    kinds = data.draw(st.lists(st.tuples(names, grammars), min_size=tree.bs, max_size=tree.bs))
    failing = data.draw(st.integers(0, tree.bs))

    def sessions() -> list[GrammarSession]:
        made = [GrammarSession(VOCABULARY, matcher(*kind)) for kind in kinds]
        if failing < len(made):
            made[failing] = GrammarSession(VOCABULARY, raising(*kinds[failing], "fill_bitmask", 2))
        return made

    alone, shared = build(sessions(), tree), build(sessions(), tree, THREE_THREADS)
    assert shared.status.tolist() == alone.status.tolist()
    for one, other in zip(alone.row_of_node, shared.row_of_node, strict=True):
        assert (one < 0) == (other < 0)
        if one >= 0:
            assert alone.bitmask[one].tolist() == shared.bitmask[other].tolist()
    logits = [torch.zeros(len(tree.draft_tokens), VOCABULARY.vocab_size) for _ in range(2)]
    for mask, rows in zip((alone, shared), logits, strict=True):
        mask.upload()
        mask.apply(rows)
    assert torch.equal(*logits)


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_a_root_behind_which_nothing_is_legal_ends_its_own_request_only(name: str) -> None:
    """A grammar that the vocabulary cannot go on with, between two that are well."""
    stuck = GrammarSpec.regex("a(z|zz)")  # no token holds a z
    specs = (GRAMMARS[0], stuck, GRAMMARS[3])
    sessions = [GrammarSession(VOCABULARY, matcher(name, spec)) for spec in specs]
    sessions[1].commit([0])
    mask = build(sessions, HostTree.roots([0, 0, 0]))
    assert [session.finish for session in sessions] == [None, "error", None]
    assert mask.status.tolist() == [LIVE, PADDING, LIVE]
    logits = torch.zeros(3, VOCABULARY.vocab_size)
    mask.upload()
    mask.apply(logits)
    allowed = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]
    assert allowed[0] == legal_ids(matcher(name, GRAMMARS[0]))
    assert allowed[2] == legal_ids(matcher(name, GRAMMARS[3]))


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_a_legal_token_behind_which_nothing_is_legal_ends_its_path(name: str) -> None:
    """It may be accepted, as ordinary decoding would commit it; a root in that state fails the request."""
    session = GrammarSession(VOCABULARY, matcher(name, GrammarSpec.regex("a(z|zz)|b")))
    parents = np.array([-1, 0, 0, 1])
    mask = build([session], HostTree.from_parents(np.array([0, 4]), np.array([0, 0, 1, 1]), parents))
    assert mask.status.tolist() == [LIVE, ENDED, LIVE, REJECTED]
    assert (mask.row_of_node >= 0).tolist() == [True, False, True, False]
    assert session.finish is None
    session.commit([0])
    build([session], HostTree.roots([0]))
    assert session.finish == "error"
    assert "admits no token" in str(session.error)


class Inconsistent(Raising):
    """A matcher whose row allows what it then refuses."""

    def accept(self, _token: int) -> bool:
        return False


def test_invariant_4_a_backend_that_contradicts_itself_ends_the_request() -> None:
    session = GrammarSession(VOCABULARY, cast(Any, Inconsistent("xgrammar", GRAMMARS[0], "", 0)))
    assert not build([session], HostTree.from_chains([[0, 0]])).status.any()
    assert "does not accept it" in str(session.error)


def test_mixed_batches_ragged_widths_and_zero_drafts() -> None:
    tree = HostTree.from_chains([[0], [0, 0, 3, STOP, 0], [0, 5, STOP, 1], [0, 99, 1]])
    sessions = [
        GrammarSession(VOCABULARY, matcher("xgrammar", GRAMMARS[0])),
        GrammarSession(VOCABULARY, matcher("xgrammar", GrammarSpec.regex("aab"))),
        GrammarSession(VOCABULARY),
        GrammarSession(VOCABULARY),
    ]
    mask = build(sessions, tree)
    assert mask.status.tolist() == [
        LIVE,
        *(LIVE, LIVE, LIVE, ENDED, REJECTED),
        *(FREE, FREE, ENDED, REJECTED),
        *(FREE, REJECTED, REJECTED),
    ]
    assert mask.row_of_node.tolist() == [0, 1, 2, 3, *[-1] * 9]


def test_a_request_that_is_over_is_dead() -> None:
    session = GrammarSession(VOCABULARY)
    session.abort()
    assert build([session], HostTree.from_chains([[0, 1]])).status.tolist() == [PADDING, PADDING]


def test_long_chains_are_walked_without_recursion() -> None:
    drafts = [0, 1] * 2000
    session = GrammarSession(VOCABULARY, matcher("llguidance", GRAMMARS[0]))
    mask = build([session], HostTree.from_chains([[0, *drafts]]))
    assert (mask.status == LIVE).all()


def test_malformed_input_is_refused_and_the_memory_is_given_back() -> None:
    ring = BitmaskRing(DEVICE, VOCABULARY.num_words, num_slots=1)
    loop = HostTree(np.array([0, 2]), np.array([0, 0]), np.array([1, 0]), np.array([-1, -1]))
    for _ in range(3):
        with pytest.raises(TreeError, match="node 1"):
            build_grammar_mask([GrammarSession(VOCABULARY)], Resolved(loop), ring, DEVICE, VOCABULARY)
        two = [GrammarSession(VOCABULARY)] * 2
        with pytest.raises(TreeError, match="2 sessions for a tree of 1"):
            build_grammar_mask(two, Resolved(HostTree.roots([0])), ring, DEVICE, VOCABULARY)
    with pytest.raises(ConfigError, match="at least 2 rows"):
        fill_dense([GrammarSession(VOCABULARY)], HostTree.from_chains([[0, 0]]), np.zeros((1, 1), np.int32))
    with pytest.raises(ConfigError, match="of 1 words"):
        fill_dense([GrammarSession(VOCABULARY)], HostTree.roots([0]), np.zeros((1, 2), np.int32))
    read_only = np.zeros((4, 1), np.int32)
    read_only.flags.writeable = False
    wrongs: list[Any] = [np.zeros((4, 2), np.int32)[:, ::2], np.zeros((4, 1), np.int64), read_only]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="C-contiguous, writeable int32"):
            fill_dense([GrammarSession(VOCABULARY)], HostTree.roots([0]), wrong)


def test_a_ring_whose_slots_are_never_given_back_says_so() -> None:
    ring = BitmaskRing(DEVICE, VOCABULARY.num_words, num_slots=2)
    held = [ring.acquire(1), ring.acquire(1)]
    with pytest.raises(SpecGrammarError, match="all 2 bitmask slots are held"):
        ring.acquire(1)
    held[0].release(None)
    assert ring.acquire(4).rows.shape == (4, VOCABULARY.num_words)
