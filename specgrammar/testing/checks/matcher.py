"""Checks of `GrammarMatcher`: of one sequence's state, whatever is done to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.protocols.grammar import CompiledGrammar, GrammarBackend, GrammarMatcher, Vocabulary
from specgrammar.testing.checks.base import Checks, Draw, Story, expect, expect_raise, explore, same
from specgrammar.testing.toys import STOP, VOCABULARY, specs_for, text_of, texts_of

MakeBackend = Callable[[Vocabulary], GrammarBackend]
"""What backend and matcher checks take: the class itself, or a `functools.partial` with its options."""

MATCHER_CHECKS = Checks("matcher")

_STALE = 0x55555555


def legal_ids(matcher: GrammarMatcher) -> list[int]:
    """The ids whose bits a matcher sets, none at a dead end; every word of the row and no other was written."""
    bitmask = np.full((3, VOCABULARY.num_words), _STALE, np.int32)
    try:
        matcher.fill_bitmask(bitmask, 1)
    except DeadEndError:
        expect(not bitmask[1].any(), "fill_bitmask raised DeadEndError and left bits set in the row")
    else:
        expect(bitmask[1].any(), "fill_bitmask left the row all zero and did not raise DeadEndError")
    expect((bitmask[[0, 2]] == _STALE).all(), "fill_bitmask wrote to another row than it was given")
    flags = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    spare = [int(i) for i in np.flatnonzero(flags[VOCABULARY.vocab_size :]) + VOCABULARY.vocab_size]
    expect(
        not spare, f"fill_bitmask left bits {spare} set, behind the vocabulary's {VOCABULARY.vocab_size} ids"
    )
    return [int(i) for i in np.flatnonzero(flags)]


def some_grammar(make: MakeBackend, draw: Draw, story: Story) -> tuple[GrammarBackend, CompiledGrammar]:
    """A backend and one of the small grammars, compiled."""
    backend = make(VOCABULARY)
    spec = draw(st.sampled_from(specs_for(backend.facts)))
    story.tell(f"compile {spec.kind} {spec.source}")
    return backend, backend.compile(spec)


def walk(matcher: GrammarMatcher, draw: Draw, story: Story, most: int = 6) -> list[int]:
    """Accept up to `most` drawn legal tokens; returns them."""
    accepted: list[int] = []
    for _ in range(draw(st.integers(0, most))):
        if not (legal := legal_ids(matcher)):
            break
        token = draw(st.sampled_from(legal))
        story.tell(f"accept {text_of(token)}")
        expect(matcher.accept(token) is True, f"accept({text_of(token)}) is refused, but its bit was set")
        accepted.append(token)
    return accepted


def check_is_replay(
    matcher: GrammarMatcher, backend: GrammarBackend, compiled: CompiledGrammar, tokens: list[int], what: str
) -> None:
    """Raise unless a matcher is in the state of a fresh one that accepted `tokens`."""
    fresh = backend.matcher(compiled)
    num_accepted = fresh.accept_prefix(tokens)
    same(f"accept_prefix({texts_of(tokens)}) of a fresh matcher", num_accepted, len(tokens))
    behind = f"{what}, behind {texts_of(tokens)}"
    same(f"finished {behind}", matcher.finished, fresh.finished)
    found, expected = legal_ids(matcher), legal_ids(fresh)
    expect(
        found == expected,
        f"{behind}, the legal tokens are {texts_of(found)}; a fresh matcher's are {texts_of(expected)}",
    )


@MATCHER_CHECKS.add(invariant=1)
def check_rollback_equals_replay(make: MakeBackend) -> None:
    """The state after `rollback` equals that of a fresh matcher which accepted the remaining tokens."""

    def play(draw: Draw, story: Story) -> None:
        backend, compiled = some_grammar(make, draw, story)
        matcher, accepted = backend.matcher(compiled), list[int]()
        for _ in range(draw(st.integers(1, 3))):
            accepted += walk(matcher, draw, story)
            most = len(accepted) if (limit := backend.facts.max_rollback) is None else min(limit, len(accepted))
            num_tokens = draw(st.integers(0, most))
            story.tell(f"rollback({num_tokens})")
            matcher.rollback(num_tokens)
            del accepted[len(accepted) - num_tokens :]
            check_is_replay(matcher, backend, compiled, accepted, f"after rollback({num_tokens})")

    explore(play)


@MATCHER_CHECKS.add(invariant=1)
def check_impossible_rollbacks_are_refused(make: MakeBackend) -> None:
    """`rollback` of less than none or of more than was accepted raises MatcherError and changes nothing."""

    def play(draw: Draw, story: Story) -> None:
        backend, compiled = some_grammar(make, draw, story)
        matcher = backend.matcher(compiled)
        accepted = walk(matcher, draw, story, most=3)
        for wrong in (-1, len(accepted) + 1, 10**6):
            with expect_raise(MatcherError, f"rollback({wrong}) behind {texts_of(accepted)}"):
                matcher.rollback(wrong)
            check_is_replay(matcher, backend, compiled, accepted, f"after rollback({wrong}) was refused")

    explore(play, max_examples=30)


@MATCHER_CHECKS.add(invariant=1)
def check_the_stop_token_is_one_step(make: MakeBackend) -> None:
    """A stop token is legal where the grammar may end, makes `finished` true, and is one step to undo."""

    def play(draw: Draw, story: Story) -> None:
        backend, compiled = some_grammar(make, draw, story)
        matcher, accepted = backend.matcher(compiled), list[int]()
        while STOP not in (legal := legal_ids(matcher)):
            if not legal or len(accepted) > 20:
                return  # a dead end, or a grammar that does not come to an end by itself
            token = draw(st.sampled_from(legal))
            story.tell(f"accept {text_of(token)}")
            expect(not matcher.accept(STOP), "the stop token is accepted where its bit was not set")
            expect(matcher.accept(token), f"accept({text_of(token)}) is refused, but its bit was set")
            accepted.append(token)
        expect(not matcher.finished, "finished is true where no stop token was accepted")
        story.tell("accept stop")
        expect(matcher.accept(STOP), "the stop token is refused, but its bit was set")
        expect(matcher.finished is True, "finished is false behind a stop token")
        for token in range(VOCABULARY.vocab_size):
            expect(not matcher.accept(token), f"accept({text_of(token)}) is taken behind the stop token")
        same("legal tokens behind the stop token", legal_ids(matcher), [])
        expect(matcher.finished, "finished became false because a token was refused behind the stop token")
        story.tell("rollback(1)")
        matcher.rollback(1)
        check_is_replay(matcher, backend, compiled, accepted, "after rollback(1) of the stop token")

    explore(play, max_examples=50)
