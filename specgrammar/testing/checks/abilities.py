"""Checks of what backends and matchers may offer beyond the protocol (`protocols.abilities`).

Each is skipped where the ability is absent. What is there is held to its contract: the core uses it unasked.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import GrammarCompileError, MatcherError
from specgrammar.native.library import why_no_core
from specgrammar.protocols.abilities import (
    KnowsItsSize,
    SupportsForcedTokens,
    SupportsNativeCalls,
    SupportsTrial,
    SupportsUncheckedWalk,
)
from specgrammar.protocols.grammar import GrammarBackend, GrammarMatcher
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
from specgrammar.testing.checks.native_play import TWO_WORDS, BothThreads, play_native_moves, play_native_walk
from specgrammar.testing.checks.sources import broken_specs
from specgrammar.testing.checks.trees import Places, bits
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

ABILITY_CHECKS = Checks("abilities")


@ABILITY_CHECKS.add(invariant=10)
def check_abilities_are_whole(make: MakeBackend) -> None:
    """An ability is there with all of its members, or not at all: half of one is never used."""
    backend = make(VOCABULARY)
    _expect_all_or_none("backend", backend, SupportsTrial, ("may_hang", "recipe"))
    for spec in specs_for(backend.facts)[:1]:
        matcher = backend.matcher(backend.compile(spec))
        _expect_all_or_none("matcher", matcher, SupportsNativeCalls, ("native_calls", "native_moved"))


def _expect_all_or_none(what: str, plugin: object, ability: type, members: Sequence[str]) -> None:
    found = [name for name in members if callable(getattr(plugin, name, None))]
    expect(
        len(found) in (0, len(members)),
        f"the {what} has {', '.join(found)} alone; {ability.__name__} has {' and '.join(members)}",
    )


@ABILITY_CHECKS.add(invariant=5)
def check_native_walks_equal_fills_one_by_one(make: MakeBackend) -> None:
    """A native walk by `native_calls` gives the rows that `fill_bitmask` gives; the state is left as found."""
    if reason := why_no_core():
        raise CheckSkipped(f"there are no native walks: {reason}")
    threads, were_there = BothThreads(), list[bool]()

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_WORDS)
        _expect_native_calls(backend.matcher(grammar))
        were_there.append(play_native_walk(backend, grammar, threads, draw, story))

    explore(play)
    _skip_unless(any(were_there))


@ABILITY_CHECKS.add(invariant=6)
def check_native_moves_are_steps(make: MakeBackend) -> None:
    """Tokens that native code accepts are steps when `native_moved` was told so; it refuses what is illegal."""
    were_there = list[bool]()

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        _expect_native_calls(backend.matcher(grammar))
        were_there.append(play_native_moves(backend, grammar, draw, story))

    explore(play)
    _skip_unless(any(were_there))


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
        places, path = Places(backend, grammar, accepted, TWO_STOPS), list[int]()
        bitmask = np.full((2, TWO_STOPS.num_words), STALE, np.int32)
        calls = matcher.walk_calls(bitmask)
        story.tell("walk_calls:")
        for _ in range(draw(st.integers(1, 8))):
            bitmask[1] = STALE
            story.tell("  fill(1)")
            calls.fill(1)
            found, expected = bits(bitmask[1]), places.legal(path)
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


def _expect_native_calls(matcher: GrammarMatcher) -> None:
    if not isinstance(matcher, SupportsNativeCalls):
        raise _absent(SupportsNativeCalls, matcher)


def _skip_unless(were_there: bool) -> None:
    if not were_there:
        raise CheckSkipped("its native_calls are None everywhere: its library is not built, or switched off")


def _absent(ability: type, found: object) -> CheckSkipped:
    """The reason to skip a check."""
    return CheckSkipped(f"{type(found).__name__} does not offer {ability.__name__}")
