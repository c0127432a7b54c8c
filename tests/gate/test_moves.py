"""Moves over the beginning of a grammar, made and taken back: a session is where its output says, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrammar.grammar.session import GrammarSession
from specgrammar.protocols.grammar import NodeStatus
from specgrammar.testing.toys import STOP, VOCABULARY
from specgrammar.trees.tree import HostTree
from tests.gate.detectors import begin_of
from tests.gate.plain import CASES, allowed_behind, ids_of, status_of
from tests.toys import BACKEND_NAMES, matcher

numbers = st.lists(st.integers(0, 40), max_size=7)
blocks = st.lists(st.tuples(st.sampled_from(["commit", "follow", "look"]), numbers, numbers), max_size=8)


@dataclass
class Moved:
    """A session, and what its output is."""

    session: GrammarSession
    case: str
    output: list[int]

    def legal(self, choices: list[int]) -> list[int]:
        """What could be committed next, as numbers choose; a stop token ends it."""
        spec, start = CASES[self.case]
        tokens: list[int] = []
        for choice in choices:
            allowed = allowed_behind(spec, start, (), [*self.output, *tokens])
            some = (
                [i for i in ids_of(self.case) if i < VOCABULARY.vocab_size]
                if allowed is None
                else sorted(allowed)
            )
            if not some or (tokens and tokens[-1] == STOP):
                return tokens
            tokens.append(some[choice % len(some)])
        return tokens

    def commit(self, tokens: list[int]) -> None:
        self.session.commit(tokens)
        self.output += tokens

    def follow(self, ahead: list[int], kept: list[int]) -> None:
        """The grammar moves with choices of which others are kept: it goes back to where they part."""
        wanted = self.legal(ahead)
        for token in wanted:
            assert self.session.follow([token]) == 1
        table = ids_of(self.case)
        many = [table[number % len(table)] for number in ahead]
        first = self.session.follow_first(many)
        assert first < 0 or many[first] < VOCABULARY.vocab_size
        self.commit(self.legal(kept))

    def look(self, drafts: list[int]) -> None:
        table = ids_of(self.case)
        chain = [0, *(table[number % len(table)] for number in drafts)]
        rows = np.zeros((len(chain), VOCABULARY.num_words), np.int32)
        self.session.validate(chain[1:])
        self.session.fill(HostTree.from_chains([chain]), rows)

    def check(self) -> None:
        """Status and row of the root, and whether the grammar has begun, are those of the output."""
        session, (spec, start) = self.session, CASES[self.case]
        assert session.output == self.output
        assert session.cursor is not None
        assert session.cursor.num_steps == 0
        assert session.engaged == session.cursor.engaged == (begin_of(start, (), self.output) is not None)
        if session.finish is not None:
            return
        row = np.zeros((1, VOCABULARY.num_words), np.int32)
        status, allowed = status_of(spec, start, self.output, ())
        found = session.fill(HostTree.roots([0]), row).tolist()
        if status == NodeStatus.ENDED:
            assert session.finish == "error", "a dead end"
            return
        assert (found, session.error) == ([status], None)
        legal = frozenset(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
        assert allowed is None or legal == allowed


@settings(max_examples=300)
@given(st.sampled_from(sorted(CASES)), st.sampled_from(BACKEND_NAMES), blocks)
def test_a_session_is_where_its_output_says_whatever_was_tried_and_taken_back(
    case: str, name: str, plan: list[tuple[str, list[int], list[int]]]
) -> None:
    spec, start = CASES[case]
    moved = Moved(GrammarSession(VOCABULARY, matcher(name, spec), gate=start), case, [])
    moved.check()
    for operation, some, others in plan:
        if moved.session.finish is not None:
            return
        if operation == "commit":
            moved.commit(moved.legal(some))
        elif operation == "follow":
            moved.follow(some, others)
        else:
            moved.look(some)
        moved.check()


@settings(max_examples=200)
@given(st.sampled_from(sorted(CASES)), st.sampled_from(BACKEND_NAMES), numbers, numbers, st.data())
def test_undoing_steps_is_not_having_made_them(
    case: str, name: str, before: list[int], steps: list[int], data: st.DataObject
) -> None:
    """Any number of them, also those with which the grammar began and the tokens that it was given then."""
    spec, start = CASES[case]
    sessions = [GrammarSession(VOCABULARY, matcher(name, spec), gate=start) for _ in range(2)]
    moved, plain = (Moved(session, case, []) for session in sessions)
    committed = moved.legal(before)
    if STOP in committed:
        return
    moved.commit(committed)
    plain.commit(committed)
    cursor, other = moved.session.cursor, plain.session.cursor
    assert cursor is not None
    assert other is not None
    tokens = moved.legal(steps)
    assert cursor.step_all(tokens) == cursor.num_steps == len(tokens)
    left = len(tokens)
    while left and data.draw(st.booleans()):
        back = data.draw(st.integers(0, left))
        cursor.undo(back)
        left -= back
    assert other.step_all(tokens[:left]) == left
    assert (cursor.engaged, cursor.num_steps) == (other.engaged, left)
    assert cursor.gate_state == other.gate_state or cursor.engaged
    if cursor.engaged and not (left and tokens[left - 1] == STOP):
        rows = np.zeros((2, VOCABULARY.num_words), np.int32)
        for row, each in enumerate((cursor, other)):
            each.walk_calls(rows).fill(row)
        assert rows[0].tolist() == rows[1].tolist()
