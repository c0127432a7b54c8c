"""Checks of `GrammarMatcher.fill_bitmask`: what a row says, and what else is written."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.protocols.grammar import Vocabulary
from specgrammar.testing.checks.base import Checks, Draw, Story, expect, expect_raise, explore, same
from specgrammar.testing.checks.walking import (
    STALE,
    MakeBackend,
    accept,
    compiled,
    expect_replay,
    legal_ids,
    refuse,
    some_grammar,
    spell,
    walk,
)
from specgrammar.testing.strategies import OUTSIDE
from specgrammar.testing.toys import STOP, TWO_STOPS, VOCABULARY, anything, spelling, text_of, texts_of

MASK_CHECKS = Checks("mask")


@MASK_CHECKS.add(invariant=4)
def check_bits_are_what_accept_takes(make: MakeBackend) -> None:
    """An id's bit is set exactly where `accept` takes it; a refused id leaves the state as it was."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story, TWO_STOPS)
        matcher = backend.matcher(grammar)
        accepted = walk(matcher, draw, story, most=4, vocabulary=TWO_STOPS)
        legal, finished = legal_ids(matcher, TWO_STOPS), matcher.finished
        for token in [*range(TWO_STOPS.vocab_size), *_outside(TWO_STOPS)]:
            name = text_of(token, TWO_STOPS)
            if token in legal:
                fresh = backend.matcher(grammar)
                for earlier in accepted:
                    fresh.accept(earlier)
                with story.trying(f"in a fresh matcher that has come as far: accept {name}"):
                    expect(fresh.accept(token) is True, f"accept({name}) is refused, but its bit is set")
                continue
            with story.trying(f"accept {name}"):
                expect(matcher.accept(token) is False, f"accept({name}) is taken, but it has no bit")
                same(f"finished after accept({name}) was refused", matcher.finished, finished)
                found = legal_ids(matcher, TWO_STOPS)
                expect(
                    found == legal,
                    f"after accept({name}) was refused, the legal tokens are {texts_of(found, TWO_STOPS)}; "
                    f"before they were {texts_of(legal, TWO_STOPS)}",
                )
        expect_replay(matcher, backend, grammar, accepted, "after ids were refused", TWO_STOPS)

    explore(play, max_examples=40)


@MASK_CHECKS.add(invariant=3)
def check_the_whole_row_and_no_other_is_written(make: MakeBackend) -> None:
    """Every word of the row is written whatever it held, also behind the vocabulary's end; no other row is."""

    def play(draw: Draw, story: Story) -> None:
        size = draw(st.sampled_from([31, 32, 33, 64, 65]))
        vocabulary = _vocabulary(size)
        story.tell(f"a vocabulary of {size} ids: rows of {vocabulary.num_words} words")
        backend = make(vocabulary)
        matcher = backend.matcher(compiled(backend, anything(backend.facts), story))
        expected = np.zeros(32 * vocabulary.num_words, np.bool_)
        expected[:size] = True
        expected_words = np.packbits(expected, bitorder="little").view("<i4").astype(np.int32)
        for row, stale in ((0, 0), (1, STALE), (2, -1), (1, ~STALE)):
            bitmask = np.full((3, vocabulary.num_words), stale, np.int32)
            matcher.fill_bitmask(bitmask, row)
            same(
                f"row {row}, which held {stale}, where all {size} ids are legal",
                bitmask[row].tolist(),
                expected_words.tolist(),
            )
            others = np.delete(bitmask, row, axis=0)
            expect((others == stale).all(), f"fill_bitmask(bitmask, {row}) wrote to another row")

    explore(play, max_examples=10)


@MASK_CHECKS.add(invariant=1)
def check_filling_changes_nothing(make: MakeBackend) -> None:
    """`fill_bitmask` leaves the state as it is: a second row is the same, and the matcher goes on alike."""

    def play(draw: Draw, story: Story) -> None:
        backend, grammar = some_grammar(make, draw, story)
        matcher, quiet = backend.matcher(grammar), backend.matcher(grammar)
        accepted = walk(matcher, draw, story)
        story.tell("fill, fill")
        first, second = legal_ids(matcher), legal_ids(matcher)
        expect(first == second, f"filled twice, the row has {texts_of(first)} and then {texts_of(second)}")
        for token in accepted:
            name = text_of(token)
            expect(quiet.accept(token), f"accept({name}) is refused by a matcher that filled no row before")
        expected = legal_ids(quiet)
        expect(
            first == expected,
            f"the legal tokens behind {texts_of(accepted)} are {texts_of(first)} where rows were filled on the "
            f"way, {texts_of(expected)} where none was",
        )

    explore(play)


@MASK_CHECKS.add(invariant=3)
def check_bitmasks_not_to_contract_are_refused(make: MakeBackend) -> None:
    """A bitmask of another type, width, layout or size raises MatcherError and is not written to."""

    def play(draw: Draw, story: Story) -> None:
        vocabulary = _vocabulary(65)
        backend = make(vocabulary)
        matcher = backend.matcher(compiled(backend, anything(backend.facts), story))
        words = vocabulary.num_words
        read_only = np.zeros((2, words), np.int32)
        read_only.flags.writeable = False
        wrong: dict[str, Any] = {
            "that is too narrow": np.zeros((2, words - 1), np.int32),
            "that is too wide": np.zeros((2, words + 1), np.int32),
            "of int64": np.zeros((2, words), np.int64),
            "of float32": np.zeros((2, words), np.float32),
            "of one dimension": np.zeros((words,), np.int32),
            "of three dimensions": np.zeros((2, 1, words), np.int32),
            "that is every other row of another": np.zeros((4, words), np.int32)[::2],
            "that is a part of each row of another": np.zeros((2, 4 * words), np.int32)[:, :words],
            "in reversed order": np.zeros((2, words), np.int32)[::-1],
            "in Fortran order": np.asfortranarray(np.zeros((2, words), np.int32)),
            "that is read-only": read_only,
        }
        name = draw(st.sampled_from(sorted(wrong)))
        bitmask = wrong[name]
        story.tell(f"fill a bitmask {name}")
        before = bitmask.copy()
        with expect_raise(MatcherError, f"fill_bitmask of a bitmask {name}"):
            matcher.fill_bitmask(bitmask, 0)
        expect((bitmask == before).all(), f"fill_bitmask refused a bitmask {name}, but had written to it")
        expect(legal_ids(matcher, vocabulary), "the matcher is of no use after it refused a bitmask")

    explore(play, max_examples=30)


@MASK_CHECKS.add(invariant=3)
def check_rows_outside_the_bitmask_are_refused(make: MakeBackend) -> None:
    """A row below 0 or behind the last one raises MatcherError, and nothing is written."""

    def play(draw: Draw, story: Story) -> None:
        backend = make(VOCABULARY)
        matcher = backend.matcher(compiled(backend, anything(backend.facts), story))
        bitmask = np.full((2, VOCABULARY.num_words), STALE, np.int32)
        row = draw(st.sampled_from([-1, -2, 2, 3, 2**31]))
        story.tell(f"fill row {row} of 2")
        with expect_raise(MatcherError, f"fill_bitmask of row {row} of 2"):
            matcher.fill_bitmask(bitmask, row)
        expect((bitmask == STALE).all(), f"fill_bitmask of row {row} of 2 wrote to the bitmask")

    explore(play, max_examples=10)


@MASK_CHECKS.add(invariant=4)
def check_a_dead_end_is_raised(make: MakeBackend) -> None:
    """Where nothing is legal, `fill_bitmask` raises DeadEndError, the row is zero, and `rollback` leads out."""

    def play(draw: Draw, story: Story) -> None:
        backend = make(VOCABULARY)
        grammar = compiled(backend, spelling(backend.facts, "abz"), story)  # no id spells a "z"
        matcher = backend.matcher(grammar)
        tokens = spell(matcher, "ab", story)
        bitmask = np.full((1, VOCABULARY.num_words), draw(st.sampled_from([0, -1])), np.int32)
        for _ in range(2):
            with expect_raise(DeadEndError, "fill_bitmask where no token is legal"):
                matcher.fill_bitmask(bitmask, 0)
            same("the row of a dead end", bitmask[0].tolist(), [0] * VOCABULARY.num_words)
        for token in range(VOCABULARY.vocab_size):
            refuse(matcher, token, story, "at a dead end")
        if backend.facts.max_rollback == 0:
            return
        story.tell("rollback(1)")
        matcher.rollback(1)
        expect_replay(matcher, backend, grammar, tokens[:1], "after a dead end and rollback(1)")
        accept(matcher, tokens[1], story)
        same("legal tokens at the dead end", legal_ids(matcher), [])

    explore(play, max_examples=2)


@MASK_CHECKS.add(invariant=4)
def check_nothing_is_legal_behind_the_end(make: MakeBackend) -> None:
    """Behind a stop token `fill_bitmask` raises DeadEndError and the row is all zero, whatever it held."""

    def play(_: Draw, story: Story) -> None:
        backend = make(VOCABULARY)
        matcher = backend.matcher(compiled(backend, anything(backend.facts), story))
        accept(matcher, STOP, story)
        for stale in (-1, STALE):
            bitmask = np.full((1, VOCABULARY.num_words), stale, np.int32)
            with expect_raise(DeadEndError, "fill_bitmask behind a stop token"):
                matcher.fill_bitmask(bitmask, 0)
            same("the row behind a stop token", bitmask[0].tolist(), [0] * VOCABULARY.num_words)

    explore(play, max_examples=1)


def _outside(vocabulary: Vocabulary) -> list[int]:
    """Ids that are none, on both sides: the smallest are where Python's indexing wraps around."""
    size = vocabulary.vocab_size
    return [*OUTSIDE, -size, size, size + 1, 32 * vocabulary.num_words, 2**31]


def _vocabulary(size: int) -> Vocabulary:
    """A vocabulary of a size, all of whose ids are legal where any text is."""
    tokens = (*(b"abc12"[i % 5 : i % 5 + 1] for i in range(size - 1)), b"")
    return Vocabulary(tokens, (size - 1,), frozenset({size - 1}))
