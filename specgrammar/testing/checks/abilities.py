"""Checks of what backends and matchers may offer beyond the protocol (`protocols.abilities`).

Each is skipped where the ability is absent. What is there is held to its contract: the core uses it unasked.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgrammar.errors import GrammarCompileError, MatcherError
from specgrammar.protocols.abilities import (
    KnowsItsSize,
    SupportsForcedTokens,
    SupportsTreeFill,
    SupportsTrial,
    SupportsUncheckedWalk,
)
from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend
from specgrammar.testing.checks.base import (
    Checks,
    CheckSkipped,
    Draw,
    Story,
    expect,
    expect_raise,
    explore,
    same,
)
from specgrammar.testing.checks.sources import broken_specs
from specgrammar.testing.checks.walking import (
    STALE,
    MakeBackend,
    accept,
    expect_replay,
    legal_ids,
    some_grammar,
    undoable,
    walk,
)
from specgrammar.testing.reference import ReferenceBackend
from specgrammar.testing.toys import (
    STOP,
    TWO_STOPS,
    VOCABULARY,
    for_reference,
    specs_for,
    text_of,
    texts_of,
)
from specgrammar.trees.tree import HostTree

ABILITY_CHECKS = Checks("abilities")


@ABILITY_CHECKS.add(invariant=10)
def check_abilities_are_whole(make: MakeBackend) -> None:
    """An ability is there with all of its members, or not at all: half of one is never used."""
    backend = make(VOCABULARY)
    members = ("may_hang", "recipe")
    found = [name for name in members if callable(getattr(backend, name, None))]
    expect(
        len(found) in (0, len(members)),
        f"the backend has {', '.join(found)} alone; SupportsTrial has {' and '.join(members)}",
    )


@ABILITY_CHECKS.add(invariant=5)
def check_fill_tree_equals_fills_one_by_one(make: MakeBackend) -> None:
    """`fill_tree` fills the row of each node that is reached over legal tokens; the state is left as found."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        matcher = backend.matcher(grammar)
        if not isinstance(matcher, SupportsTreeFill):
            raise _absent(SupportsTreeFill, matcher)
        accepted = walk(matcher, draw, story, most=3, vocabulary=TWO_STOPS)
        if matcher.finished:
            return
        places = _Places(backend, grammar, accepted)
        tree, paths = _tree(draw, places, undoable(backend, 6))
        row = draw(st.integers(0, 2))
        num_nodes = len(tree.draft_tokens)
        bitmask = np.full((row + num_nodes + 1, TWO_STOPS.num_words), STALE, np.int32)
        story.tell(f"fill_tree into row {row} and on, of nodes")
        for node, path in enumerate(paths):
            story.tell(f"  {node}: " + ("padding" if path is None else f"behind {texts_of(path, TWO_STOPS)}"))
        links = tree.retrieve_next_token, tree.retrieve_next_sibling
        matcher.fill_tree(tree.draft_tokens, *links, bitmask, row)
        for node, path in enumerate(paths):
            if path is not None and places.is_live(path):
                found, expected = _bits(bitmask[row + node]), places.legal(path)
                expect(
                    found == expected,
                    f"fill_tree gives node {node} the tokens {texts_of(found, TWO_STOPS)}; "
                    f"one by one they are {texts_of(expected, TWO_STOPS)}",
                )
        outside = np.delete(bitmask, slice(row, row + num_nodes), axis=0)
        expect((outside == STALE).all(), "fill_tree wrote to rows outside of the tree's")
        expect_replay(matcher, backend, grammar, accepted, "after fill_tree", TWO_STOPS)

    explore(play)


@ABILITY_CHECKS.add(invariant=5)
def check_a_walk_equals_checked_calls(make: MakeBackend) -> None:
    """`walk_calls` do what `accept`, `fill_bitmask` and `rollback` do, but at a dead end nothing is raised."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        matcher = backend.matcher(grammar)
        if not isinstance(matcher, SupportsUncheckedWalk):
            raise _absent(SupportsUncheckedWalk, matcher)
        accepted = walk(matcher, draw, story, most=3, vocabulary=TWO_STOPS)
        if matcher.finished:
            return
        places, path = _Places(backend, grammar, accepted), list[int]()
        bitmask = np.full((2, TWO_STOPS.num_words), STALE, np.int32)
        calls = matcher.walk_calls(bitmask)
        story.tell("walk_calls:")
        for _ in range(draw(st.integers(1, 8))):
            bitmask[1] = STALE
            story.tell("  fill(1)")
            calls.fill(1)
            found, expected = _bits(bitmask[1]), places.legal(path)
            expect(
                found == expected,
                f"fill of walk_calls gives {texts_of(found, TWO_STOPS)}; "
                f"fill_bitmask gives {texts_of(expected, TWO_STOPS)}",
            )
            expect((bitmask[0] == STALE).all(), "fill(1) of walk_calls wrote to row 0")
            onward = [token for token in expected if token not in TWO_STOPS.stop_ids]
            if path and (not onward or draw(st.booleans())):
                num_tokens = draw(st.integers(1, len(path)))
                story.tell(f"  rollback({num_tokens})")
                calls.rollback(num_tokens)
                del path[len(path) - num_tokens :]
            elif onward and len(path) < undoable(backend, 8):
                path.append(draw(st.sampled_from(onward)))
                story.tell(f"  accept({text_of(path[-1], TWO_STOPS)})")
                calls.accept(path[-1])
        if path:
            story.tell(f"  rollback({len(path)})")
            calls.rollback(len(path))
        expect_replay(matcher, backend, grammar, accepted, "after a walk", TWO_STOPS)
        accepted += walk(matcher, draw, story, most=2, vocabulary=TWO_STOPS)
        expect_replay(matcher, backend, grammar, accepted, "after a walk and more tokens", TWO_STOPS)

    explore(play)


@ABILITY_CHECKS.add(invariant=3)
def check_walks_that_cannot_begin_are_refused(make: MakeBackend) -> None:
    """`walk_calls` raises MatcherError behind a stop token, and for a bitmask that is not to contract."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher = backend.matcher(grammar)
        if not isinstance(matcher, SupportsUncheckedWalk):
            raise _absent(SupportsUncheckedWalk, matcher)
        wrong: Any = np.zeros((2, VOCABULARY.num_words), draw(st.sampled_from([np.int64, np.uint8])))
        with expect_raise(MatcherError, f"walk_calls of a bitmask of {wrong.dtype}"):
            matcher.walk_calls(wrong)
        walk(matcher, draw, story)
        if STOP in legal_ids(matcher):
            accept(matcher, STOP, story)
        if matcher.finished:
            with expect_raise(MatcherError, "walk_calls behind a stop token"):
                matcher.walk_calls(np.zeros((2, VOCABULARY.num_words), np.int32))

    explore(play, max_examples=30)


@ABILITY_CHECKS.add(invariant=1)
def check_forced_text_is_the_only_text(make: MakeBackend) -> None:
    """`forced_text` is the longest text with which everything goes on; empty where the grammar may end."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        matcher = backend.matcher(grammar)
        if not isinstance(matcher, SupportsForcedTokens):
            raise _absent(SupportsForcedTokens, matcher)
        parser = ReferenceBackend(TWO_STOPS).compile(for_reference(grammar.spec)).parser
        accepted, room = list[int](), 0
        for _ in range(draw(st.integers(1, 3))):
            more = walk(matcher, draw, story, vocabulary=TWO_STOPS)
            accepted, room = accepted + more, undoable(backend, room + len(more))
            story.tell("forced_text")
            state = parser.start
            for byte in TWO_STOPS.text([token for token in accepted if token not in TWO_STOPS.stop_ids]):
                state = parser.step(state, byte) or state
            what = f"behind {texts_of(accepted, TWO_STOPS)}"
            same(f"forced_text {what}", matcher.forced_text(), parser.only_text(state))
            expect_replay(matcher, backend, grammar, accepted, "after forced_text", TWO_STOPS)
            num_tokens = draw(st.integers(0, room))
            story.tell(f"rollback({num_tokens})")
            matcher.rollback(num_tokens)
            room -= num_tokens
            del accepted[len(accepted) - num_tokens :]
        expect_replay(matcher, backend, grammar, accepted, "after forced_text and rollbacks", TWO_STOPS)

    explore(play)


@ABILITY_CHECKS.add(invariant=9)
def check_the_size_is_known(make: MakeBackend) -> None:
    """`num_bytes` of a compiled grammar is a positive number that does not change while matchers work."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        if not isinstance(grammar, KnowsItsSize):
            raise _absent(KnowsItsSize, grammar)
        size = grammar.num_bytes
        expect(type(size) is int and size > 0, f"num_bytes is {size!r}; expected a positive number of bytes")
        walk(backend.matcher(grammar), draw, story)
        same("num_bytes after a matcher worked", grammar.num_bytes, size)

    explore(play, max_examples=20)


@ABILITY_CHECKS.add(invariant=9)
def check_trials_are_of_an_equal_backend(make: MakeBackend) -> None:
    """`recipe` gives a factory that can be pickled and makes an equal backend; `may_hang` says yes or no."""
    backend = make(VOCABULARY)
    if not isinstance(backend, SupportsTrial):
        raise _absent(SupportsTrial, backend)
    recipe = backend.recipe()
    try:
        other: GrammarBackend = pickle.loads(pickle.dumps(recipe))()
    except Exception as error:
        expect(False, f"the recipe cannot travel to another process: {type(error).__name__}: {error}")
        raise
    same("the class that the recipe makes", type(other), type(backend))
    same("its facts", other.facts, backend.facts)
    same("its vocabulary's fingerprint", other.vocabulary.fingerprint, backend.vocabulary.fingerprint)
    for spec in specs_for(backend.facts):
        expect(type(backend.may_hang(spec)) is bool, f"may_hang({spec}) is not True or False")
        rows = [texts_of(legal_ids(one.matcher(one.compile(spec)))) for one in (backend, other)]
        same(f"the first row of {spec}, compiled by the recipe's backend,", rows[1], rows[0])
    for spec in broken_specs(backend.facts):
        try:
            backend.may_hang(spec)
        except GrammarCompileError:
            continue


def _absent(ability: type, found: object) -> CheckSkipped:
    """The reason to skip a check."""
    return CheckSkipped(f"{type(found).__name__} does not offer {ability.__name__}")


class _Places:
    """What is legal at each place behind a root, each asked of a fresh matcher."""

    def __init__(self, backend: GrammarBackend, grammar: CompiledGrammar, root: list[int]) -> None:
        self._backend, self._grammar, self._root = backend, grammar, root
        self._legal: dict[tuple[int, ...], list[int]] = {}

    def legal(self, path: list[int]) -> list[int]:
        """The legal ids behind a path of legal tokens; none behind a stop token."""
        key = tuple(path)
        if key not in self._legal:
            fresh = self._backend.matcher(self._grammar)
            for token in (*self._root, *path):
                fresh.accept(token)
            self._legal[key] = legal_ids(fresh, TWO_STOPS)
        return self._legal[key]

    def is_live(self, path: list[int]) -> bool:
        """Whether a node is reached over legal tokens, and no stop token is among them."""
        reached = all(token in self.legal(path[:place]) for place, token in enumerate(path))
        return reached and not set(path) & set(TWO_STOPS.stop_ids)


def _tree(draw: Draw, places: _Places, depth: int) -> tuple[HostTree, list[list[int] | None]]:
    """A tree of one request, and the path to each node; None for padding. Most nodes are legal."""
    paths: list[list[int] | None] = [[]]
    tokens, parents = [draw(st.sampled_from([-1, 0, STOP]))], [-1]
    for _ in range(draw(st.integers(0, 7))):
        above = [node for node, path in enumerate(paths) if path is not None and len(path) < depth]
        if not above or draw(st.integers(0, 9)) == 9:
            tokens.append(-1)
            parents.append(-1)
            paths.append(None)
            continue
        parent = draw(st.sampled_from(above[::-1]))
        path = paths[parent]
        assert path is not None
        legal = places.legal(path) if places.is_live(path) else []
        ids = list(range(TWO_STOPS.vocab_size))
        tokens.append(draw(st.sampled_from(legal if legal and draw(st.integers(0, 4)) < 4 else ids)))
        parents.append(parent)
        paths.append([*path, tokens[-1]])
    cu_nodes, draft_tokens, links = (np.array(part, np.int64) for part in ([0, len(tokens)], tokens, parents))
    return HostTree.from_parents(cu_nodes, draft_tokens, links), paths


def _bits(row: NDArray[np.int32]) -> list[int]:
    """The ids whose bits are set."""
    return [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]
