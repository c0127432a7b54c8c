"""Backends and matchers whose abilities are wrong.

`CalledBack`, `Counting`, `Walk`, `Forced`, `Sized` and `Tried` have them right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from specgrammar.errors import DeadEndError, MatcherError
from specgrammar.grammar.native import BitmaskGuard
from specgrammar.protocols.abilities import WalkCalls
from specgrammar.protocols.grammar import GrammarSpec
from specgrammar.testing.checks.abilities import (
    check_a_walk_equals_checked_calls,
    check_abilities_are_whole,
    check_forced_text_is_the_only_text,
    check_the_size_is_known,
    check_trials_are_of_an_equal_backend,
    check_walks_that_cannot_begin_are_refused,
)
from specgrammar.testing.reference import ReferenceBackend, ReferenceCompiled, ReferenceMatcher
from specgrammar.testing.toys import TWO_STOPS
from tests.called_back import CalledBack
from tests.conformance.broken.native_calls import BROKEN_NATIVE_CALLS, Counting
from tests.conformance.broken.rejected import backend_of, rejected


class Walk(ReferenceMatcher):
    def walk_calls(self, bitmask: Any) -> WalkCalls:
        self.check_walk(bitmask)
        return WalkCalls(self.go, partial(self.fill, bitmask), self.rollback)

    def check_walk(self, bitmask: Any) -> None:
        BitmaskGuard(self._vocabulary, id).handle(bitmask)
        if self._finished:
            raise MatcherError("the sequence has ended")

    def go(self, token: int) -> None:
        self.accept(token)

    def fill(self, bitmask: Any, row: int) -> None:
        with contextlib.suppress(DeadEndError):
            self.fill_bitmask(bitmask, row)


class WalkRaises(Walk):
    def fill(self, bitmask: Any, row: int) -> None:
        self.fill_bitmask(bitmask, row)


class WalkIsNotCounted(Walk):
    def go(self, token: int) -> None:
        self.accept(token)
        del self._history[-2]


class WalkInRowZero(Walk):
    def fill(self, bitmask: Any, row: int) -> None:
        super().fill(bitmask, 0 * row)


class WalkUndoesOne(Walk):
    def walk_calls(self, bitmask: Any) -> WalkCalls:
        calls = super().walk_calls(bitmask)
        return WalkCalls(calls.accept, calls.fill, lambda _: self.rollback(1))


class WalkRemembersRows(Walk):
    def walk_calls(self, bitmask: Any) -> WalkCalls:
        self.known: dict[int, Any] = {}
        return super().walk_calls(bitmask)

    def fill(self, bitmask: Any, row: int) -> None:
        super().fill(bitmask, row)
        bitmask[row] = self.known.setdefault(len(self._history), bitmask[row].copy())


class WalkTakesAnyBitmask(Walk):
    def check_walk(self, bitmask: Any) -> None:
        del bitmask
        if self._finished:
            raise MatcherError("the sequence has ended")


class WalkBehindTheEnd(Walk):
    def check_walk(self, bitmask: Any) -> None:
        BitmaskGuard(self._vocabulary, id).handle(bitmask)


@dataclass(frozen=True, eq=False)
class SizedCompiled(ReferenceCompiled):
    @property
    def num_bytes(self) -> int:
        return 100 * len(self.spec.source) + 100


class UnknownSize(SizedCompiled):
    @property
    def num_bytes(self) -> int:
        return 0


class GrowingSize(SizedCompiled):
    """Counts what has been worked out so far."""

    @property
    def num_bytes(self) -> int:
        return 100 + len(self.parser.start.after)


class Sized(ReferenceBackend):
    compiled_class: type[SizedCompiled] = SizedCompiled

    def compile(self, spec: GrammarSpec) -> ReferenceCompiled:
        made = super().compile(spec)
        return self.compiled_class(made.spec, made.weakened, made.parser)


class SizeZero(Sized):
    compiled_class = UnknownSize


class SizeGrows(Sized):
    compiled_class = GrowingSize


class Forced(ReferenceMatcher):
    def forced_text(self) -> Any:
        return self._parser.only_text(self._history[-1])


class ForcedMoves(Forced):
    """A parser that moves over what it finds, as some do."""

    def forced_text(self) -> Any:
        text = super().forced_text()
        for token in [TWO_STOPS.tokens.index(bytes([byte])) for byte in text if byte in b"abc12"]:
            self.accept(token)
        return text


class ForcedBehindTheEnd(ReferenceMatcher):
    """Goes on where the grammar may end."""

    def forced_text(self) -> bytes:
        state, text = self._history[-1], b""
        while len(legal := [b for b in range(256) if self._parser.step(state, b) is not None]) == 1:
            text += bytes(legal)
            state = self._parser.step(state, legal[0]) or state
        return text


class ForcedByTokens(ReferenceMatcher):
    """The texts of single tokens, of which there are several where the text is one."""

    def forced_text(self) -> bytes:
        legal = [token for token in range(TWO_STOPS.vocab_size) if self._after(token) is not None]
        return TWO_STOPS.tokens[legal[0]] if len(legal) == 1 else b""


class ForcedIsAString(Forced):
    def forced_text(self) -> Any:
        return super().forced_text().decode()


class Tried(ReferenceBackend):
    def may_hang(self, spec: GrammarSpec) -> bool:
        self.compile(spec)
        return spec.kind == "grammar"

    def recipe(self) -> Callable[[], ReferenceBackend]:
        return partial(type(self), self.vocabulary)


class HalfTried(ReferenceBackend):
    def may_hang(self, spec: GrammarSpec) -> bool:
        return spec.kind == "grammar"


class RecipeCannotTravel(Tried):
    def recipe(self) -> Callable[[], ReferenceBackend]:
        return lambda: self


class RecipeOfAnotherVocabulary(Tried):
    def recipe(self) -> Callable[[], ReferenceBackend]:
        return partial(type(self), TWO_STOPS)


class RecipeOfAnotherBackend(Tried):
    def recipe(self) -> Callable[[], ReferenceBackend]:
        return partial(ReferenceBackend, self.vocabulary)


class MayHangEscapes(Tried):
    def may_hang(self, spec: GrammarSpec) -> bool:
        if not spec.source:
            raise IndexError("string index out of range")
        return True


RIGHT_ABILITIES = [
    backend_of(CalledBack),
    backend_of(Counting),
    backend_of(Walk),
    backend_of(Forced),
    Sized,
    Tried,
]

_WALK = check_a_walk_equals_checked_calls
_BEGIN = check_walks_that_cannot_begin_are_refused
_FORCED = check_forced_text_is_the_only_text
_TRIAL = check_trials_are_of_an_equal_backend

BROKEN_ABILITIES = [
    *BROKEN_NATIVE_CALLS,
    *(
        rejected(fault, make, check, finds)
        for fault, make, check, finds in (
            ("a walk raises dead ends", WalkRaises, _WALK, "raised DeadEndError"),
            ("a walk's tokens are no steps", WalkIsNotCounted, _WALK, "raised MatcherError: rollback"),
            ("a walk fills row 0", WalkInRowZero, _WALK, "fill of walk_calls gives"),
            (
                "a walk undoes one token at a time",
                WalkUndoesOne,
                _WALK,
                "after a walk|fill of walk_calls gives",
            ),
            ("a walk remembers rows by depth", WalkRemembersRows, _WALK, "fill of walk_calls gives"),
            (
                "a walk takes any bitmask",
                WalkTakesAnyBitmask,
                _BEGIN,
                "of a bitmask of (int64|uint8) raised nothing",
            ),
            ("a walk begins behind the end", WalkBehindTheEnd, _BEGIN, "behind a stop token raised nothing"),
            ("asking for forced text moves the matcher", ForcedMoves, _FORCED, "after forced_text, behind"),
            (
                "text is forced where the grammar may end",
                ForcedBehindTheEnd,
                _FORCED,
                "forced_text behind .*; exp",
            ),
            ("text is forced as single tokens are", ForcedByTokens, _FORCED, "forced_text behind .*; exp"),
            ("forced text is no bytes", ForcedIsAString, _FORCED, "forced_text behind .* is ; expected b''"),
            ("a size of nothing", SizeZero, check_the_size_is_known, "num_bytes is 0"),
            ("a size that grows", SizeGrows, check_the_size_is_known, "num_bytes after a matcher worked is"),
            ("trials without a recipe", HalfTried, check_abilities_are_whole, "the backend has may_hang alone"),
            ("a recipe that cannot travel", RecipeCannotTravel, _TRIAL, "cannot travel to another process"),
            ("a recipe of another vocabulary", RecipeOfAnotherVocabulary, _TRIAL, "vocabulary's fingerprint"),
            ("a recipe of another backend", RecipeOfAnotherBackend, _TRIAL, "the class that the recipe makes"),
            ("`may_hang` raises what it likes", MayHangEscapes, _TRIAL, "raised IndexError"),
        )
    ),
]
