"""Masks of draft windows in which a grammar begins: chains and trees, markers at each position and split."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrammar.grammar.bitmask import BitmaskRing
from specgrammar.grammar.build import build_grammar_mask
from specgrammar.grammar.gate import Marker, Markers
from specgrammar.grammar.session import GrammarSession
from specgrammar.grammar.staging import Resolved
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.runtime.device import InlineDevice
from specgrammar.testing.strategies import trees
from specgrammar.testing.toys import GRAMMARS, STOP, VOCABULARY, path_to
from specgrammar.trees.tree import HostTree
from tests.gate.plain import CASES, ids_of, legal_behind, status_of, written
from tests.toys import BACKEND_NAMES, matcher

LIVE, FREE, REJECTED = int(NodeStatus.LIVE), int(NodeStatus.FREE), int(NodeStatus.REJECTED)
names = st.sampled_from(BACKEND_NAMES)
cases = st.sampled_from(sorted(CASES))
numbers = st.integers(0, 30)

Nodes = list[tuple[NodeStatus, frozenset[int] | None]]


def masked(session: GrammarSession, tree: HostTree) -> Nodes:
    """Each node's status and what its row allows; the same in an engine's own buffer."""
    device = InlineDevice()
    ring = BitmaskRing(device, VOCABULARY.num_words)
    mask = build_grammar_mask([session], Resolved(tree), ring, device, VOCABULARY)
    dense = np.zeros((tree.num_nodes, VOCABULARY.num_words), np.int32)
    assert session.fill(tree, dense).tolist() == mask.status.tolist()
    nodes: Nodes = []
    for node, row in enumerate(mask.row_of_node.tolist()):
        status = NodeStatus(int(mask.status[node]))
        allowed = None
        if status == NodeStatus.LIVE:
            bits = np.unpackbits(mask.bitmask[row].view(np.uint8), bitorder="little")
            allowed = frozenset(np.flatnonzero(bits).tolist())
            assert dense[node].tolist() == mask.bitmask[row].tolist()
        nodes.append((status, allowed))
    mask.discard()
    return nodes


@given(cases, names, st.lists(numbers, max_size=9), trees(max_requests=1, max_nodes=12, vocab_size=40))
def test_every_row_is_that_of_the_nodes_own_path_from_where_the_grammar_begins_on_it(
    case: str, name: str, choices: list[int], tree: HostTree
) -> None:
    """Against the definition, whatever is committed; nothing moves by being looked at."""
    if not tree.bs:
        return
    spec, start = CASES[case]
    table = np.array(ids_of(case))
    tokens = np.where(tree.draft_tokens < 0, -1, table[tree.draft_tokens % len(table)])
    tree = dataclasses.replace(tree, draft_tokens=tokens)
    output = written(case, choices)
    session = GrammarSession(VOCABULARY, matcher(name, spec), gate=start)
    session.commit(output)
    expected: Nodes = [
        (NodeStatus.PADDING, None)
        if node and tree.draft_tokens[node] < 0
        else status_of(spec, start, output, path_to(tree, 0, node))
        for node in range(tree.num_nodes)
    ]
    if expected[0][0] == NodeStatus.ENDED:  # nothing can follow what is committed
        masked(session, tree)
        assert "admits no token" in str(session.error)
        return
    assert masked(session, tree) == expected == masked(session, tree)
    assert session.finish is None
    assert session.cursor is not None
    assert session.cursor.num_steps == 0


@given(cases, names, st.lists(numbers, max_size=9), st.lists(numbers, max_size=9))
def test_validate_counts_what_could_be_committed_across_the_beginning(
    case: str, name: str, choices: list[int], drafts: list[int]
) -> None:
    spec, start = CASES[case]
    output, table = written(case, choices), ids_of(case)
    tokens = [table[number % len(table)] for number in drafts]
    session = GrammarSession(VOCABULARY, matcher(name, spec), gate=start)
    session.commit(output)
    states = [status_of(spec, start, output, tokens[: end + 1])[0] for end in range(len(tokens))]
    count = next((end for end, state in enumerate(states) if state == NodeStatus.REJECTED), len(tokens))
    assert session.validate(tokens) == count == session.validate(tokens)


MARKERS: dict[str, tuple[Markers, Marker, bool]] = {
    "one token": (Markers(after=((6,),)), (6,), False),
    "three tokens": (Markers(after=((6, 6, 7),)), (6, 6, 7), False),
    "one of several": (Markers(after=((6, 7), (7, 6), (8,))), (7, 6), False),
    "a call of one token": (Markers(at=((3,),)), (3,), True),
    "a call of three tokens": (Markers(after=((6,),), at=((0, 1, 0),)), (0, 1, 0), True),
}
FILLER, WINDOW = 15, 7


@pytest.mark.parametrize("name", BACKEND_NAMES)
@pytest.mark.parametrize("kind", MARKERS)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_the_marker_at_each_position_of_a_window(kind: str, name: str, shape: str) -> None:
    """Begun before the window with any of its tokens, or at any draft; rows are masked from there on."""
    gate, marker, is_implicit = MARKERS[kind]
    content = [1, 0, 1, 0, 1, 0, 1] if kind == "a call of three tokens" else [0, 1, 0, 1, 0, 1, 0]
    for num_before in range(len(marker)):
        for position in range(WINDOW if not num_before else 1):
            session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=gate)
            session.commit([FILLER, *marker[:num_before]])
            drafts = [*[FILLER] * position, *marker[num_before:], *content][:WINDOW]
            if shape == "chain":
                tree, drawn = HostTree.from_chains([[FILLER, *drafts]]), slice(None)
            else:  # every draft has a sibling that no grammar here allows, and that no marker holds
                tree, drawn = bushy(drafts, sibling=13), slice(None, None, 2)
            nodes = masked(session, tree)
            opens = position + len(marker) - num_before  # the node of the last of the marker's tokens
            for node, (status, allowed) in enumerate(nodes[drawn]):
                if node < opens:
                    assert (status, allowed) == (FREE, None), "nothing before the marker is the grammar's"
                else:
                    read = (*(marker if is_implicit else ()), *drafts[opens:node])
                    assert (status, allowed) == (LIVE, legal_behind(GRAMMARS[0], read)), (
                        "masked from the marker on"
                    )
            if shape == "tree":
                siblings = [int(status) for status, _ in nodes[1::2]]
                assert siblings == [FREE if i < opens else REJECTED for i in range(WINDOW)]


def bushy(drafts: list[int], sibling: int) -> HostTree:
    """A chain in nodes of even number; the node before each is its sibling."""
    tokens, parents = [FILLER], [-1]
    for i, draft in enumerate(drafts):
        tokens += [sibling, draft]
        parents += [2 * i, 2 * i]
    return HostTree.from_parents(np.array([0, len(tokens)]), np.array(tokens), np.array(parents))


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_the_second_marker_of_a_window_is_content(name: str) -> None:
    """Legal or not as the grammar says; in a tree the same marker opens each branch by itself."""
    gate = Markers(after=((2,),), at=((0,),))
    for spec, statuses in (
        (GRAMMARS[3], [FREE, LIVE, LIVE, LIVE]),
        (GRAMMARS[0], [FREE, LIVE, REJECTED, REJECTED]),
    ):
        session = GrammarSession(VOCABULARY, matcher(name, spec), gate=gate)
        found = masked(session, HostTree.from_chains([[9, 2, 2, 0]]))
        assert [int(status) for status, _ in found] == statuses
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=gate)
    parents = np.array([-1, 0, 0, 0, 1, 2, 3, 3])
    tree = HostTree.from_parents(np.array([0, 8]), np.array([9, 2, 0, 5, 0, 1, 2, 0]), parents)
    found = masked(session, tree)
    assert [int(status) for status, _ in found] == [FREE, LIVE, LIVE, FREE, LIVE, LIVE, LIVE, LIVE]
    reads: list[Marker] = [(), (0,), (0,), (0, 1), (), (0,)]
    rows = [allowed for status, allowed in found if status == LIVE]
    assert rows == [legal_behind(GRAMMARS[0], read) for read in reads]


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_a_stop_token_before_the_marker_ends_the_path(name: str) -> None:
    session = GrammarSession(VOCABULARY, matcher(name, GRAMMARS[0]), gate=Markers(after=((2,),)))
    found = masked(session, HostTree.from_chains([[9, 5, STOP, 2, 0]]))
    assert [status.name for status, _ in found] == ["FREE", "FREE", "ENDED", "REJECTED", "REJECTED"]
    session.commit([5, STOP, 2, 0])
    assert (session.output, session.finish, session.engaged, session.error) == ([5, STOP], "stop", False, None)
