"""What checks of matchers do again and again: compile, walk, read a row, compare with a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from specgrammar.errors import DeadEndError
from specgrammar.protocols.grammar import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarSpec,
    Vocabulary,
)
from specgrammar.testing.checks.base import CheckSkipped, Draw, Story, expect, same
from specgrammar.testing.toys import VOCABULARY, specs_for, spelling, text_of, texts_of

MakeBackend = Callable[[Vocabulary], GrammarBackend]
"""What backend and matcher checks take: the class itself, or a `functools.partial` with its options."""

STALE = 0x55555555
"""What rows hold before they are filled."""


def legal_ids(matcher: GrammarMatcher, vocabulary: Vocabulary = VOCABULARY) -> list[int]:
    """The ids whose bits a matcher sets, none at a dead end; every word of the row and no other was written."""
    bitmask = np.full((3, vocabulary.num_words), STALE, np.int32)
    try:
        matcher.fill_bitmask(bitmask, 1)
    except DeadEndError:
        expect(not bitmask[1].any(), "fill_bitmask raised DeadEndError and left bits set in the row")
    else:
        expect(bitmask[1].any(), "fill_bitmask left the row all zero and did not raise DeadEndError")
    expect((bitmask[[0, 2]] == STALE).all(), "fill_bitmask wrote to another row than it was given")
    flags = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    spare = [int(i) for i in np.flatnonzero(flags[vocabulary.vocab_size :]) + vocabulary.vocab_size]
    expect(
        not spare, f"fill_bitmask left bits {spare} set, behind the vocabulary's {vocabulary.vocab_size} ids"
    )
    return [int(i) for i in np.flatnonzero(flags)]


def some_grammar(
    make: MakeBackend, draw: Draw, story: Story, vocabulary: Vocabulary = VOCABULARY
) -> tuple[GrammarBackend, CompiledGrammar]:
    """A backend and one of the small grammars, compiled; the last one is a dead end, as no id spells a "z"."""
    backend = make(vocabulary)
    expect(specs_for(backend.facts), "the facts name nothing that it compiles: see facts.kinds")
    dead_end = spelling(backend.facts, "abz")
    specs = specs_for(backend.facts) if dead_end is None else (*specs_for(backend.facts), dead_end)
    spec = draw(st.sampled_from(specs))
    return backend, compiled(backend, spec, story)


def compiled(backend: GrammarBackend, spec: GrammarSpec | None, story: Story) -> CompiledGrammar:
    """Compile a grammar and tell so; CheckSkipped where the backend compiles no kind that can say it."""
    if spec is None:
        raise CheckSkipped(f"it compiles only {', '.join(sorted(backend.facts.kinds))}")
    story.tell(f"compile {spec.kind} {spec.source}".rstrip())
    return backend.compile(spec)


def walk(
    matcher: GrammarMatcher, draw: Draw, story: Story, most: int = 6, vocabulary: Vocabulary = VOCABULARY
) -> list[int]:
    """Accept up to `most` drawn legal tokens; returns them."""
    accepted: list[int] = []
    for _ in range(draw(st.integers(0, most))):
        if not (legal := legal_ids(matcher, vocabulary)):
            break
        token = draw(st.sampled_from(legal))
        accept(matcher, token, story, vocabulary)
        accepted.append(token)
    return accepted


def accept(matcher: GrammarMatcher, token: int, story: Story, vocabulary: Vocabulary = VOCABULARY) -> None:
    """Accept a token whose bit is set."""
    name = text_of(token, vocabulary)
    story.tell(f"accept {name}")
    expect(matcher.accept(token) is True, f"accept({name}) is refused, but its bit was set")


def refuse(
    matcher: GrammarMatcher, token: int, story: Story, where: str, vocabulary: Vocabulary = VOCABULARY
) -> None:
    """Offer a token that is illegal; that is told only where it is taken, or raises."""
    name = text_of(token, vocabulary)
    with story.trying(f"accept {name}"):
        expect(matcher.accept(token) is False, f"accept({name}) is taken {where}")


def spell(matcher: GrammarMatcher, text: str, story: Story, vocabulary: Vocabulary = VOCABULARY) -> list[int]:
    """Accept a text, a token for each character; returns them."""
    tokens = [vocabulary.tokens.index(char.encode()) for char in text]
    for token in tokens:
        name = text_of(token, vocabulary)
        story.tell(f"accept {name}")
        expect(matcher.accept(token), f"accept({name}) is refused, but the grammar allows {text!r}")
    return tokens


def expect_replay(
    matcher: GrammarMatcher,
    backend: GrammarBackend,
    compiled: CompiledGrammar,
    tokens: Sequence[int],
    what: str,
    vocabulary: Vocabulary = VOCABULARY,
) -> None:
    """Raise ConformanceError unless a matcher is in the state of a fresh one that accepted `tokens`."""
    fresh = backend.matcher(compiled)
    told = texts_of(tokens, vocabulary)
    for token in tokens:
        expect(fresh.accept(token), f"a fresh matcher refuses {text_of(token, vocabulary)} of {told}")
    same(f"finished {what}, behind {told}", matcher.finished, fresh.finished)
    found, expected = legal_ids(matcher, vocabulary), legal_ids(fresh, vocabulary)
    expect(
        found == expected,
        f"{what}, behind {told}, the legal tokens are {texts_of(found, vocabulary)}; "
        f"a fresh matcher's are {texts_of(expected, vocabulary)}",
    )


def undoable(backend: GrammarBackend, most: int) -> int:
    """Up to `most` tokens, as far as the backend says that it can undo them.

    It may keep just that many states: what was undone is room that only further tokens fill again.
    """
    limit = backend.facts.max_rollback
    return most if limit is None else min(limit, most)
